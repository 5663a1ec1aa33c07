#!/usr/bin/env python3
"""Measures what the comparison with the exported methods costs a cold build: each model with it, and without it.

    python benchmarks/comparison/run.py [--models NAME...] [--pairs 3] [--write benchmarks/results]

The models are those of the zoo. Both builds of a pair have no cache. The one without the comparison leaves all methods
out (`checks: {compare: {leave_out: ...}}`). Each ratio compares two figures of one pair; the median of a model's pairs
counts. `CPU` is user and system time, of children too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "zoo"), str(HERE.parents[1])]

from measure import compile_driver, usage  # noqa: E402
from zoo import MODELS, write  # noqa: E402


def measure(name: str, scratch: Path, pairs: int) -> dict[str, float | str]:
    """The row of one model."""
    manifest = write(name, scratch / name.replace(" ", "_"))
    without = manifest.with_name("without.json")
    checks = {"compare": {"leave_out": "measured"}}
    without.write_text(json.dumps({**json.loads(manifest.read_text("utf-8")), "checks": checks}), "utf-8")
    ratios = []
    for _ in range(pairs):
        build = [sys.executable, "-m", "etbuild", "build", "--no-cache", "-o", scratch / "out"]
        compared, plain = usage(*build, manifest), usage(*build, without)
        ratios.append((plain.wall, compared.wall / plain.wall, compared.cpu / plain.cpu))
    columns = [statistics.median(column) for column in zip(*ratios, strict=True)]
    return {"model": name, **dict(zip(("without s", "wall", "CPU"), columns, strict=True))}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how often each model is built")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write comparison.json there")
    options = parser.parse_args()
    compile_driver(HERE.parents[1])
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models:
            rows.append(measure(name, Path(scratch), options.pairs))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    summary = {}
    for key in ("wall", "CPU"):
        column = [float(row[key]) for row in rows]
        summary[key] = {"median": statistics.median(column), "worst": max(column)}
        print(f"{key}: with / without: median {statistics.median(column):.3f}, worst {max(column):.3f}")
    if options.write:
        machine = {"processors": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        results = {"machine": machine, "pairs": options.pairs, "summary": summary, "models": rows}
        (options.write / "comparison.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
