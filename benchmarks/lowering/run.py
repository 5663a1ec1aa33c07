"""Measures lowering: the plain ExecuTorch script (`benchmarks/plain.py`) against `etbuild build`, same programs.

    python -m benchmarks.lowering.run [--runs 5] [--only SECTION...] [--write benchmarks/results]

It measures wall seconds of whole processes; for a warm worker, those of one request for a whole build. Every ratio
compares two figures of the same turn. Every program is compared with the plain script's, and the benchmark fails if a
byte differs.

    bars      2 methods with 12 layers like GPT's or 16 like Llama's, and the smallest example: cold, with a warm
              worker, from the cache
    edit      one of eight methods edited
    switches  a cold build, each time with one switch of `etplugins.accelerate` turned off
    memory    two methods with 650 MB of weights; four programs at once in one worker
    worker    the first and later requests of a worker that was only asked for a tiny program; the size of its process

The columns are builds:

- `plain`: the plain script; `cold`: with an empty cache; `warm`: one request to a warm worker, without a cache;
- `hit`: from the cache; `cached`: with the cache of the build before an edit;
- `all`: a cold build with all switches; the columns after it are cold builds without one switch each;
- `first`: the first request; `later`: the median of the next ones.

In `memory` and in columns with `MB` the figures are megabytes. A column with `/` is a ratio of two figures of the same
turn.
"""

from __future__ import annotations

import filecmp
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.lowering.project import Size, edit_one_method, perceptron, transformer
from benchmarks.measure import command, commands, megabytes, seconds, weighing
from etplugins.accelerate.occasions import SWITCHES
from tests.helpers.worker_client import Worker

PLAIN = Path(__file__).parents[1] / "plain.py"
LARGE = Size(layers=12, methods=2, dim=1024)  # 0.65 GB of float32
ROTARY = Size(layers=16, methods=2, dim=256, model="rotary_model.py")
REQUESTS = 20


class Bench:
    """One run of the benchmark: a directory to work in, and a warm worker."""

    def __init__(self, scratch: Path, runs: int) -> None:
        self.scratch = scratch
        self.runs = runs
        self.rows: dict[str, list[Row]] = {}
        self.names = 0
        self.worker = Worker(scratch)
        self.warm(perceptron(self.new()))

    def new(self) -> Path:
        """Returns a path that does not exist yet."""
        self.names += 1
        return self.scratch / f"{self.names:04}"

    def note(self, section: str, **row: Any) -> None:
        """Stores a row of a section, and prints it."""
        self.rows.setdefault(section, []).append(row)
        print(section, end="  ")
        frame.tell(row)

    def plain(self, manifest: Path) -> Path:
        """Runs the plain script, and returns its output directory."""
        out = self.new()
        command(sys.executable, PLAIN, manifest, out)
        return out

    def cold(self, manifest: Path) -> Path:
        """Builds with an empty cache."""
        return self.cached(manifest, self.new())

    def cached(self, manifest: Path, cache: Path) -> Path:
        """Builds with a cache that may hold earlier results."""
        out = self.new()
        command(sys.executable, "-m", "etbuild", "build", manifest, "-o", out, "--cache-dir", cache)
        return out

    def warm(self, manifest: Path) -> Path:
        """Builds everything in the warm worker."""
        out = self.new()
        response = self.worker.ask("build", manifest, "--no-cache", "-o", out)
        if response.exit_code:
            sys.exit(response.output)
        return out

    def turn(self, builds: dict[str, Callable[[], Path]]) -> dict[str, float]:
        """Runs builds one after the other, and checks that all programs equal the first one's."""
        taken, made = {}, []
        for name, build in builds.items():
            start = time.monotonic()
            made.append(build())
            taken[name] = time.monotonic() - start
            if not filecmp.cmp(made[0] / "program.pte", made[-1] / "program.pte", shallow=False):
                sys.exit(f"{name} made another program than {next(iter(builds))}")
        for out in made:
            shutil.rmtree(out)
        return taken

    def compare(self, section: str, program: str, builds: dict[str, Callable[[], Path]], runs: int) -> Row:
        """Runs several turns of builds. The ratios compare each build with the first one."""
        turns = [self.turn(builds) for _ in range(runs)]
        first, *others = builds
        row: Row = {"program": program, "runs": runs}
        for name in builds:
            row[name] = statistics.median(turn[name] for turn in turns)
        for name in others:
            row[f"{name} / {first}"] = statistics.median(turn[name] / turn[first] for turn in turns)
        self.note(section, **row)
        return row


def bars(bench: Bench) -> None:
    """Measures the figures that the project promises."""
    for program, manifest in (
        ("12 layers, 2 methods", transformer(bench.new(), Size())),
        ("16 rotary layers of 256, 2 methods", transformer(bench.new(), ROTARY)),
        ("the smallest", perceptron(bench.new())),
    ):
        cache = bench.new()
        shutil.rmtree(bench.cached(manifest, cache))
        builds: dict[str, Callable[[], Path]] = {
            "plain": lambda manifest=manifest: bench.plain(manifest),  # type: ignore[misc]
            "cold": lambda manifest=manifest: bench.cold(manifest),  # type: ignore[misc]
            "warm": lambda manifest=manifest: bench.warm(manifest),  # type: ignore[misc]
            "hit": lambda manifest=manifest, cache=cache: bench.cached(manifest, cache),  # type: ignore[misc]
        }
        bench.compare("bars", program, builds, bench.runs)


def edit(bench: Bench) -> None:
    """Measures a rebuild after an edit to one of eight methods. The bytes must equal those of a clean build."""
    manifest, cache = transformer(bench.new(), Size(methods=8)), bench.new()
    bench.cached(manifest, cache)

    def edited() -> Path:
        return bench.cached(manifest, cache)

    def rebuilt() -> Path:
        edit_one_method(manifest)
        return bench.plain(manifest)

    bench.compare("edit", "one of 8 methods, 12 layers", {"plain": rebuilt, "cached": edited}, max(1, bench.runs // 2))


def switches(bench: Bench) -> None:
    """Measures the gain of each switch: the time without it, divided by the time with all switches."""
    manifest = transformer(bench.new(), Size(layers=6, methods=1))

    def without(name: str) -> Path:
        out = bench.new()
        others = tuple(switch for switch in SWITCHES if switch != name)
        called = f"from etplugins.accelerate import occasions; occasions.SWITCHES = {others!r}"
        run = f"{called}; from etbuild.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
        arguments = ["build", manifest, "--no-cache", "-o", out]
        command(sys.executable, "-c", run, *arguments, PYTHONHASHSEED="0", PYTHONSAFEPATH="1")
        return out

    builds: dict[str, Callable[[], Path]] = {"all": lambda: without("")}
    builds.update({name: lambda name=name: without(name) for name in SWITCHES})  # type: ignore[misc]
    bench.compare("switches", "6 layers, 1 method", builds, max(1, bench.runs // 2))


def memory(bench: Bench) -> None:
    """Measures peak memory in megabytes: for one large model, and for four programs at once in one worker."""
    manifest = transformer(bench.new(), LARGE)
    weights = (manifest.parent / "model.safetensors").stat().st_size / 1e6
    peaks = {}
    for name, build in (("plain", bench.plain), ("cold", bench.cold)):
        with weighing(bench.worker.process.pid) as scale:
            shutil.rmtree(build(manifest))
        peaks[name] = scale.peak
    bench.note("memory", program="650 MB", weights=weights, **peaks, **{"cold / weights": peaks["cold"] / weights})
    several = [transformer(bench.new(), Size(layers=6 + number)) for number in range(4)]
    with weighing(bench.worker.process.pid) as plain:
        commands([sys.executable, PLAIN, project, bench.new()] for project in several[2:])
    with weighing() as worker:
        for number, project in enumerate(several, 1):
            bench.worker.send("build", project, "--no-cache", "-o", bench.new(), request_id=number)
        for response in [bench.worker.receive() for _ in several]:
            if response.exit_code:
                sys.exit(response.output)
    ratio = worker.peak / plain.peak
    bench.note("memory", program="four in a worker, two plain", plain=plain.peak, worker=worker.peak, ratio=ratio)


def worker(bench: Bench) -> None:
    """Measures requests of a worker that was only asked for a tiny program so far, and its memory in megabytes."""
    manifest, one = transformer(bench.new(), Size(layers=6, model=ROTARY.model)), Worker(bench.scratch)

    def request(manifest: Path) -> None:
        response = one.ask("build", manifest, "--no-cache", "-o", bench.new())
        if response.exit_code:
            sys.exit(response.output)

    try:
        request(perceptron(bench.new()))
        times, sizes = [], []
        for _ in range(REQUESTS):
            times.append(seconds(lambda: request(manifest)))
            sizes.append(megabytes(one.process.pid))
    finally:
        one.end()
    later = statistics.median(times[1:])
    row = {"first": times[0], "later": later, "first / later": times[0] / later}
    row |= {"MB after the first": sizes[0], f"MB after {REQUESTS}": sizes[-1]}
    bench.note("worker", program="6 rotary layers, 2 methods", **row)


SECTIONS = {section.__name__: section for section in (bars, edit, switches, memory, worker)}


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="turns of the bars; half of that of the rest")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), options.runs)
        try:
            for name in options.only:
                SECTIONS[name](bench)
        finally:
            bench.worker.end()
    frame.write(options.write, "lowering", bench.rows, options.loaded)


if __name__ == "__main__":
    main()
