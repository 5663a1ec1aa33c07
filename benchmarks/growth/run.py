"""Measures how builds grow: seconds and memory against layers, methods, bytes of weights, and operators.

    python -m benchmarks.growth.run [--only SECTION...] [--runs 3] [--largest N] [--write benchmarks/results]

The builds of a size run in turn: `ours`, a cold `etbuild build`; `plain`, the script `benchmarks/plain.py`; and
optimum-executorch, for what it exports. The figures are medians: wall seconds, `CPU` (user and system seconds, of
children too), and `MB`, the peak memory of all processes.

    layers       a transformer like GPT, 64 wide, of 2 to 32 layers
    methods      its 4 layers with 1 to 8 methods, which read longer and longer texts
    weights      4 layers from 128 to 1024 wide: the size is that of the weights in MB
    operators    64 to 1024 operators in a chain, without weights
    transformers a Qwen 3 of 1 to 16 layers, 128 wide, in float32 with a cache: `etbuild init` and optimum-executorch

`slopes` has those of straight lines through the logarithms of sizes and figures: with 1, twice the size takes twice the
time; with 0, all sizes take the same. `at the end` is the slope between the two largest sizes, where imports weigh
least.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.llm.builds import optimum_float32, ours_float32
from benchmarks.lowering.project import Size, chain, transformer
from benchmarks.measure import Usage, command, usage

BENCHMARKS = Path(__file__).resolve().parents[1]
FIGURES = ("s", "CPU", "MB")
Builds = dict[str, Callable[[Path], Usage]]
"""Commands by name; each gets a new directory."""


def of_manifest(manifest: Path) -> Builds:
    """Ours and the plain script."""
    build = [sys.executable, "-m", "etbuild", "build", manifest]
    return {
        "ours": lambda out: usage(*build, "--cache-dir", out / "cache", "-o", out / "out"),
        "plain": lambda out: usage(sys.executable, BENCHMARKS / "plain.py", manifest, out),
    }


def of_checkpoint(checkpoint: Path) -> Builds:
    """Ours and optimum-executorch."""
    return {
        "ours": lambda out: ours_float32(checkpoint, out)[1][-1],
        "optimum": lambda out: optimum_float32(checkpoint, out)[1][-1],
    }


def layers(scratch: Path) -> Iterator[tuple[float, Builds]]:
    """A transformer of many layers."""
    for number in (2, 4, 8, 16, 32):
        yield number, of_manifest(transformer(scratch / str(number), Size(number, methods=1, dim=64)))


def methods(scratch: Path) -> Iterator[tuple[float, Builds]]:
    """A transformer with many methods."""
    for number in (1, 2, 4, 8):
        yield number, of_manifest(transformer(scratch / str(number), Size(4, methods=number, dim=64)))


def weights(scratch: Path) -> Iterator[tuple[float, Builds]]:
    """A transformer with wide layers."""
    for width in (128, 256, 512, 1024):
        manifest = transformer(scratch / str(width), Size(4, methods=1, dim=width))
        yield manifest.with_name("model.safetensors").stat().st_size / 1e6, of_manifest(manifest)


def operators(scratch: Path) -> Iterator[tuple[float, Builds]]:
    """A chain of many operators."""
    for number in (64, 128, 256, 512, 1024):
        yield number, of_manifest(chain(scratch / str(number), number))


def transformers(scratch: Path) -> Iterator[tuple[float, Builds]]:
    """A language model of transformers with many layers."""
    config = json.loads((BENCHMARKS / "llm/qwen3/config.json").read_text("utf-8"))
    config |= {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 2, "num_key_value_heads": 1}
    for number in (1, 2, 4, 8, 16):
        written = scratch / f"{number}.json"
        written.write_text(json.dumps({**config, "vocab_size": 1000, "num_hidden_layers": number}), "utf-8")
        command(sys.executable, BENCHMARKS / "llm/checkpoint.py", written, scratch / str(number))
        yield number, of_checkpoint(scratch / str(number))


SECTIONS = {section.__name__: section for section in (layers, methods, weights, operators, transformers)}


def row(section: str, size: float, builds: Builds, runs: int) -> Row:
    """What the builds of one size take."""
    found: dict[str, list[Usage]] = {name: [] for name in builds}
    for _ in range(runs):
        for name, build in builds.items():
            with tempfile.TemporaryDirectory() as made:
                found[name].append(build(Path(made) / "made"))
    made_row: Row = {section: size, "runs": runs}
    for name, each in found.items():
        made_row[f"{name} s"] = statistics.median(one.wall for one in each)
        made_row[f"{name} CPU"] = statistics.median(one.cpu for one in each)
        made_row[f"{name} MB"] = statistics.median(one.peak for one in each)
    return made_row


def slopes(section: str, rows: list[Row]) -> list[Row]:
    """The slopes of each build in a section."""
    names = [key.removesuffix(" CPU") for key in rows[0] if key.endswith(" CPU")]
    found = []
    for name in names:
        one: Row = {"against": section, "build": name}
        for key in FIGURES:
            points = [(math.log(each[section]), math.log(each[f"{name} {key}"])) for each in rows]
            one[key] = slope(points)
            one[f"{key} at the end"] = slope(points[-2:])
        found.append(one)
    return found


def slope(points: list[tuple[float, float]]) -> float:
    """That of the line with the least squares."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--runs", type=int, default=3, help="how often each is built")
    parser.add_argument("--largest", type=float, default=math.inf, help="leave out larger sizes")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    found: dict[str, list[Row]] = {}
    for name in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            for size, builds in SECTIONS[name](Path(scratch)):
                if size > options.largest:
                    break
                found.setdefault(name, []).append(row(name, size, builds, options.runs))
                frame.tell(found[name][-1])
    kept = {} if options.write is None else frame.read("growth", options.write)["sections"]
    several = {name: rows for name, rows in {**kept, **found}.items() if name in SECTIONS and len(rows) > 1}
    steep = [one for name, rows in several.items() for one in slopes(name, rows)]
    print(frame.table(steep))
    frame.write(options.write, "growth", {**found, "slopes": steep}, options.loaded)


if __name__ == "__main__":
    main()
