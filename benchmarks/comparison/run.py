#!/usr/bin/env python3
"""Measures what the comparison with the exported methods costs a cold build: each model with it, and without it.

    python -m benchmarks.comparison.run [--models NAME...] [--pairs 3] [--write benchmarks/results]

The models are those of the zoo. Both builds of a pair have no cache. The one without the comparison leaves all methods
out (`checks: {compare: {leave_out: ...}}`). Each ratio compares two figures of one pair; the median of a model's pairs
counts. `CPU` is user and system time, of children too.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import frame
from benchmarks.measure import usage
from benchmarks.zoo.zoo import MODELS, write


def measure(name: str, scratch: Path, pairs: int) -> frame.Row:
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
    parser = frame.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how often each model is built")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models:
            rows.append(measure(name, Path(scratch), options.pairs))
            frame.tell(rows[-1])
    sections = {"models": rows, "summary": frame.summary(rows, ("wall", "CPU"))}
    print(frame.table(sections["summary"]))
    frame.write(options.write, "comparison", sections, options.loaded)


if __name__ == "__main__":
    main()
