"""Measures how fast programs are: those of `etbuild`, of a plain ExecuTorch script, and of optimum-executorch.

    python -m benchmarks.latency.run [--models NAME...] [--runs 12] [--seconds 10] [--write benchmarks/results]

`etbuild bench OURS --against OTHER` runs two programs in turns, in processes of ExecuTorch's runtime. `ours / other` is
the ratio of the times of a call, with its 95 % interval: below 1, ours is faster. `ours ms` and `other ms` are medians.
`outside` counts the operators that no delegate computes.

    plain      models of the zoo, by `benchmarks/plain.py --uncorrected`: what ExecuTorch makes by itself. It computes
               some operators wrongly, which `etbuild` keeps from XNNPACK or writes in another way. A program with the
               same bytes as ours is not run, since the files are equal.
    optimum    language models, by `etbuild init` and by optimum-executorch, in float32 with a cache
"""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.llm.builds import optimum_float32, ours_float32
from benchmarks.measure import command
from benchmarks.zoo import zoo
from benchmarks.zoo.run import PLAIN, SURROUNDINGS
from etkit.running.benchmarking.intervals import FEWEST

LLM = Path(__file__).resolve().parents[1] / "llm"
OF_ZOO = ("bert", "vit", "mobilenet v2", "whisper", "llama")
OF_OPTIMUM = {"qwen 3, 4 layers": "qwen3", "llama 3, 4 layers": "llama"}
"""The types of models that have the sizes of `llm/qwen3`."""
RUNS, SECONDS = 12, 10.0
ETBUILD = [sys.executable, "-m", "etbuild"]


def against_plain(name: str, scratch: Path) -> tuple[Path, Path]:
    """Our program and the plain script's."""
    manifest = zoo.write(name, scratch / "model")
    command(*ETBUILD, "build", manifest, "--no-cache", "-o", scratch / "ours")
    command(sys.executable, PLAIN, manifest, scratch / "plain", "--uncorrected", **SURROUNDINGS)
    return scratch / "ours/program.pte", scratch / "plain/program.pte"


def against_optimum(name: str, scratch: Path) -> tuple[Path, Path]:
    """Our program and that of optimum-executorch."""
    config = json.loads((LLM / "qwen3/config.json").read_text("utf-8"))
    config |= {"model_type": OF_OPTIMUM[name], "num_hidden_layers": 4}
    (scratch / "config.json").write_text(json.dumps(config), "utf-8")
    command(sys.executable, LLM / "checkpoint.py", scratch / "config.json", scratch / "model")
    ours, _ = ours_float32(scratch / "model", scratch / "ours")
    optimum, _ = optimum_float32(scratch / "model", scratch / "optimum")
    return ours, optimum


def outside(program: Path) -> int:
    """The number of operators of a program that no delegate computes."""
    done = subprocess.run([*ETBUILD, "inspect", "--json", program], capture_output=True, text=True, check=True)
    return sum(sum(method["operators"].values()) for method in json.loads(done.stdout)["methods"].values())


def rows(name: str, other: str, programs: tuple[Path, Path], runs: int, seconds: float) -> Iterator[Row]:
    """A row for each phase of two programs, or one that says that they are equal."""
    found: Row = {"model": name, "other": other, "same bytes": filecmp.cmp(*programs, shallow=False)}
    found |= {"ours outside": outside(programs[0]), "other outside": outside(programs[1])}
    if found["same bytes"]:
        yield found
        return
    bench = [*ETBUILD, "bench", programs[0], "--against", programs[1], "--runs", str(runs), "--seconds", str(seconds)]
    done = subprocess.run([*map(str, bench), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    for phase in json.loads(done.stdout)["phases"]:
        times = [phase[each]["latency"]["median"] * 1e3 for each in ("program", "against")]
        row = {**found, "phase": phase["phase"], "ours ms": times[0], "other ms": times[1]}
        verdict = phase["verdict"]
        yield row | {"ours / other": 1 + verdict["change"], "low": 1 + verdict["low"], "high": 1 + verdict["high"]}


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    models = [*OF_ZOO, *OF_OPTIMUM]
    parser.add_argument("--models", nargs="+", choices=models, default=models, metavar="NAME")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"processes of each program, at least {FEWEST}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each phase of two programs")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    found: list[Row] = []
    for name in options.models:
        other, build = ("plain", against_plain) if name in OF_ZOO else ("optimum", against_optimum)
        with tempfile.TemporaryDirectory() as scratch:
            for row in rows(name, other, build(name, Path(scratch)), options.runs, options.seconds):
                found.append(row)
                frame.tell(row)
    frame.write(options.write, "latency", {"programs": found}, options.loaded)


if __name__ == "__main__":
    main()
