"""Measures models of many kinds: the plain ExecuTorch script of this folder against `etbuild build`.

    python benchmarks/zoo/run.py [--models NAME...] [--pairs 3] [--list] [--write benchmarks/results]

Each pair runs the plain script, `etbuild build` with an empty cache (cold), and one request to a warm worker (warm).
Every ratio compares two figures of one pair. `CPU` is user and system time, of children too. `peak` is the memory of
all processes of a build, in megabytes.

All programs have their weights in the .pte, and the programs must be equal byte for byte: the benchmark fails if one
is not. Both builds use ExecuTorch's defaults, except for four things that the plain script does as `etbuild` does. It
puts the weights of backends in the order of their keys. It exports without gradients. It writes out GELU's tanh form,
which XNNPACK computes wrongly. And it runs with the arithmetic
that is the same on all x86-64 processors, since weights are random and int8's scales are computed. It also runs with a
fixed `PYTHONHASHSEED`: with another one, ExecuTorch may order the results of a delegate in another way. `etbuild` has
its bytecode, as pip compiles it when it installs a wheel. The benchmark shows what builds say about slower ways.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from measure import compile_driver, seconds, usage  # noqa: E402
from zoo import MODELS, write  # noqa: E402

from etbuild.surroundings import arithmetic  # noqa: E402
from tests.helpers.worker_client import Worker  # noqa: E402

_THREADS = "_NUM_THREADS"  # the plain script may use all processors
SURROUNDINGS = {
    "PYTHONHASHSEED": "0",
    **{name: value for name, value in arithmetic.VARIABLES.items() if not name.endswith(_THREADS)},
}
RATIOS = ("cold / plain", "warm / plain", "CPU / plain")
_REQUEST_SECONDS = 3600.0
Row = dict[str, Any]


def measure_pair(manifest: Path, out: Path, worker: Worker) -> Row:
    """Builds a program with the plain script, cold and warm, into a new directory."""
    but = worker.process.pid
    plain = usage(sys.executable, HERE / "plain.py", manifest, out / "plain", but=but, **SURROUNDINGS)
    build = [sys.executable, "-m", "etbuild", "build", manifest, "--cache-dir", out / "cache"]
    cold = usage(*build, "-o", out / "cold", but=but)

    def request() -> None:
        worker.send("build", manifest, "--no-cache", "-o", out / "warm")
        response = worker.receive(_REQUEST_SECONDS)
        if response.exit_code:
            sys.exit(response.output)

    warm = seconds(request)
    programs = [out / name / "program.pte" for name in ("plain", "cold", "warm")]
    found = {
        "plain s": plain.wall,
        "cold / plain": cold.wall / plain.wall,
        "warm / plain": warm / plain.wall,
        "CPU / plain": cold.cpu / plain.cpu,
        "plain peak": plain.peak,
        "cold peak": cold.peak,
        "same bytes": all(filecmp.cmp(programs[0], program, shallow=False) for program in programs[1:]),
        "notes": [line for line in cold.output.splitlines() if line.startswith("note:")],
    }
    shutil.rmtree(out)
    return found


def measure(name: str, scratch: Path, worker: Worker, pairs: int) -> Row:
    """The row of one model: medians of its pairs."""
    manifest = write(name, scratch / "model")
    methods = len(json.loads(manifest.read_text("utf-8"))["methods"])
    found = [measure_pair(manifest, scratch / "pair", worker) for _ in range(pairs)]
    row: Row = {"model": name, "methods": methods}
    for key in ("plain s", *RATIOS, "plain peak", "cold peak"):
        row[key] = statistics.median(pair[key] for pair in found)
    row["same bytes"] = all(pair["same bytes"] for pair in found)
    row["notes"] = sorted({note for pair in found for note in pair["notes"]})
    shutil.rmtree(manifest.parent)
    return row


def summary(rows: list[Row]) -> dict[str, dict[str, float]]:
    """The median and the worst of each ratio over all models."""
    columns = {key: [row[key] for row in rows] for key in RATIOS}
    return {key: {"median": statistics.median(values), "worst": max(values)} for key, values in columns.items()}


def table(rows: list[Row]) -> str:
    """The rows, their summary and their notes in Markdown."""
    columns = [key for key in rows[0] if key != "notes"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(_shown(row[key]) for key in columns) + " |" for row in rows]
    lines += ["", "| ratio | median | worst |", "|---|---|---|"]
    lines += [f"| {key} | {found['median']:.3f} | {found['worst']:.3f} |" for key, found in summary(rows).items()]
    notes = [f"- {row['model']}: {note}" for row in rows for note in row["notes"]]
    return "\n".join([*lines, "", "Notes of builds:" if notes else "No build has a note.", "", *notes])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how often each model is built")
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write zoo.json, .md and .svg there")
    options = parser.parse_args()
    if options.list:
        print("\n".join(MODELS))
        return
    if options.write and importlib.util.find_spec("matplotlib") is None:
        sys.exit("`--write` draws a picture: pip install -r benchmarks/requirements.txt")
    compile_driver(ROOT)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        worker = Worker(Path(scratch))
        try:
            measure("lstm", Path(scratch), worker, 1)  # warms the worker, and the files that all builds read
            for name in options.models:
                rows.append(measure(name, Path(scratch), worker, options.pairs))
                print("  ".join(f"{key} {_shown(value)}" for key, value in rows[-1].items()), flush=True)
        finally:
            worker.end()
    print(f"\n{table(rows)}")
    if options.write:
        write_results(options.write, rows, options.pairs)
    if not all(row["same bytes"] for row in rows):
        sys.exit("a program differs from the plain script's")


def write_results(directory: Path, rows: list[Row], pairs: int) -> None:
    """Writes the results as JSON, as a page and as a picture."""
    from plot import plot

    packages = {name: importlib.metadata.version(name) for name in ("torch", "executorch", "transformers")}
    machine = {"processors": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    machine = {**machine, **packages}
    results = {"machine": machine, "pairs": pairs, "summary": summary(rows), "models": rows}
    (directory / "zoo.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    listed = ", ".join(f"{key} {value}" for key, value in machine.items())
    head = "`python benchmarks/zoo/run.py --write benchmarks/results` writes this page. The command's help"
    how = f"Medians of {pairs} pairs." if pairs > 1 else "One pair of each model."
    about = f"The machine: {listed}. {how}"
    text = f"# Zoo\n\n{head}\nsays what the columns are.\n\n{about}\n\n{table(rows)}\n"
    (directory / "zoo.md").write_text(text, "utf-8")
    plot(results, directory / "zoo.svg")


if __name__ == "__main__":
    main()
