"""Measures models of many kinds: the plain ExecuTorch script (`benchmarks/plain.py`) against `etbuild build`.

    python -m benchmarks.zoo.run [--models NAME...] [--pairs 3] [--list] [--write benchmarks/results]

Each pair runs the plain script, `etbuild build` with an empty cache (cold), and one request to a warm worker (warm).
Every ratio compares two figures of one pair. `CPU` is user and system time, of children too. `peak` is the memory of
all processes of a build, in megabytes.

All programs have their weights in the .pte, and the programs must be equal byte for byte: the benchmark fails if one is
not. Both builds use ExecuTorch's defaults, except for four things that the plain script does as `etbuild` does. It puts
the weights of backends in the order of their keys. It exports without gradients. It corrects what ExecuTorch and
XNNPACK compute wrongly. And it runs with the arithmetic that is the same on all x86-64 processors, since weights are
random and int8's scales are computed. It also runs with a fixed `PYTHONHASHSEED`: with another one, ExecuTorch may
order the results of a delegate in another way. `etbuild` has its bytecode, as pip compiles it when it installs a wheel.
The benchmark shows what builds say about slower ways.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.measure import seconds, usage
from benchmarks.zoo.zoo import MODELS, write
from etbuild.surroundings import arithmetic
from tests.helpers.worker_client import Worker

PLAIN = Path(__file__).parents[1] / "plain.py"
_THREADS = "_NUM_THREADS"  # the plain script may use all processors
SURROUNDINGS = {
    "PYTHONHASHSEED": "0",
    **{name: value for name, value in arithmetic.VARIABLES.items() if not name.endswith(_THREADS)},
}
RATIOS = ("cold / plain", "warm / plain", "CPU / plain")
_REQUEST_SECONDS = 3600.0


def measure_pair(manifest: Path, out: Path, worker: Worker) -> Row:
    """Builds a program with the plain script, cold and warm, into a new directory."""
    but = worker.process.pid
    plain = usage(sys.executable, PLAIN, manifest, out / "plain", but=but, **SURROUNDINGS)
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
    row: Row = {"model": name, "methods": methods, "pairs": pairs}
    for key in ("plain s", *RATIOS, "plain peak", "cold peak"):
        row[key] = statistics.median(pair[key] for pair in found)
    row["same bytes"] = all(pair["same bytes"] for pair in found)
    row["notes"] = sorted({note for pair in found for note in pair["notes"]})
    shutil.rmtree(manifest.parent)
    return row


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how often each model is built")
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    options = parser.parse_args()
    if options.list:
        print("\n".join(MODELS))
        return
    frame.begin(options.write, options.loaded)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        worker = Worker(Path(scratch))
        try:
            measure("lstm", Path(scratch), worker, 1)  # warms the worker, and the files that all builds read
            for name in options.models:
                rows.append(measure(name, Path(scratch), worker, options.pairs))
                frame.tell(rows[-1])
                measured = frame.joined(options.write, "zoo", "models", rows, options.loaded)
                sections = {"models": measured, "summary": frame.summary(measured, RATIOS)}
                frame.write(options.write, "zoo", sections, options.loaded)  # it may be ended
        finally:
            worker.end()
    print(frame.table(sections["summary"]))
    if not all(row["same bytes"] for row in rows):
        sys.exit("a program differs from the plain script's")


if __name__ == "__main__":
    main()
