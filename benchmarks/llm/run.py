"""Builds one language model with `etbuild` and with others, and compares the builds and the programs.

    python -m benchmarks.llm.run [--only NAME...] [--shapes SHAPE...] [--rounds 15] [--real-size]
        [--write benchmarks/results]

The checkpoint is made at random: a Qwen 3 of 8 layers, 512 wide, with 32,000 words and tied embeddings, in bfloat16.
All programs have linear layers of 4 bits in groups of 32, embeddings of 8 bits, scales by HQQ, a cache of 512 tokens,
and XNNPACK:

    ours          `etbuild build model.yaml`
    optimum       `optimum-cli export executorch`, in an environment of its own
    export_llm    ExecuTorch's `export_llm`, after its conversion of the checkpoint
    plain         plain.py, a script with ExecuTorch's attention and caches
    transformers  transformers' `ExecutorchExporter`: two programs in float32, since it does not export such layers

`--shapes` compares models of other families in float32, each as `etbuild init` writes it, with transformers' exporter
and with optimum where it builds one: the configurations in `shapes`.

In each round, a process loads the programs in another order, and runs them in turn. A ratio of speeds is the centre of
the ratios of the rounds, with its 95 % interval. A program counts as slower than another if the whole interval says
so. The benchmark fails if a program computes something else. `--real-size` builds a Qwen 2.5 of 0.5 billion and a
Llama 3.2 of 1.2 billion parameters too, which `optimum` and `export_llm` do not build.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.llm.builds import BUILDS, FLOAT32
from benchmarks.measure import Usage, command, seconds, usage
from etkit.running.benchmarking.intervals import FEWEST, Interval, signed_rank

HERE = Path(__file__).resolve().parent
SHAPES = {file.stem: file for file in sorted((HERE / "shapes").glob("*.json"))}
REAL_SIZES = ("qwen2_5", "llama3_2")  # 0.5 and 1.2 billion parameters
REAL_LENGTH = 1024  # as in real_size.yaml
ALIKE = 0.2
"""Scores may differ by this part of their norm. `export_llm` finds scales of embeddings in another way, which changes
them by 0.08; another model's scores differ by more than 1."""
ALIKE_FLOAT32 = 0.001
FULL_PRECISION = ("transformers",)
"""Those of `BUILDS` whose scores are not those of 4 bits. `--shapes` compares them with ours in float32."""


def planned_megabytes(program: Path) -> float:
    """The memory that a program plans for its method `forward`."""
    inspected = [sys.executable, "-m", "etbuild", "inspect", "--json", str(program)]
    found = json.loads(subprocess.run(inspected, capture_output=True, check=True, text=True).stdout)
    return float(sum(found["methods"]["forward"]["memory"])) / 1e6


def costs(program: Path, usages: list[Usage]) -> Row:
    """What it took to build a program, or a folder of programs, and their sizes."""
    programs = sorted(program.glob("*.pte")) if program.is_dir() else [program]
    return {
        "export CPU s": sum(each.cpu for each in usages),
        "export s": sum(each.wall for each in usages),
        "peak MB": max(each.peak for each in usages),
        "size MB": sum(each.stat().st_size for each in programs) / 1e6,
        "planned MB": sum(map(planned_megabytes, programs)),
    }


def speeds(programs: dict[str, Path], rounds: int) -> dict[str, Any]:
    """What `speed.py` prints, with lists of times. Each round is a process that loads the programs in another order."""
    named = [f"{name}={program}" for name, program in programs.items()]
    made: list[dict[str, Any]] = []
    for number in range(rounds):
        random.Random(number).shuffle(named)
        measured = usage(sys.executable, HERE / "speed.py", *named)
        found = next(line for line in reversed(measured.output.splitlines()) if line.startswith("{"))
        made.append(json.loads(found))
    times = ("prefill", "decode")
    return {
        name: {**made[-1][name], **{time: [each[name][time] for each in made] for time in times}} for name in programs
    }


def distance(scores: list[float], reference: list[float]) -> float:
    """The norm of the difference of two lists, as a part of the norm of the second."""
    norm = sum(value**2 for value in reference) ** 0.5
    return float(sum((a - b) ** 2 for a, b in zip(scores, reference, strict=True)) ** 0.5 / norm)


def compare(scratch: Path, names: list[str], rounds: int) -> dict[str, Row]:
    """Builds and runs the programs. Returns a row for each."""
    checkpoint = scratch / "checkpoint"
    command(sys.executable, HERE / "checkpoint.py", HERE / "qwen3/config.json", checkpoint)
    made = {name: BUILDS[name](checkpoint, scratch / name) for name in names}
    return compared(made, rounds, ALIKE, FULL_PRECISION)


def compare_float32(scratch: Path, shape: str, rounds: int) -> dict[str, Row]:
    """Builds and runs the programs of one of `SHAPES`. A build of others that fails has no row."""
    checkpoint = scratch / shape
    command(sys.executable, HERE / "checkpoint.py", SHAPES[shape], checkpoint)
    made = {}
    for name, build in FLOAT32.items():
        try:
            made[name] = build(checkpoint, scratch / f"{shape}_{name}")
        except SystemExit as error:
            if name == "ours":
                raise
            *_, reason, _ = filter(None, str(error).splitlines())  # the last line is the command
            print(f"{shape}: {name} builds no program: {reason}", flush=True)
    return compared(made, rounds, ALIKE_FLOAT32)


def compared(
    made: dict[str, tuple[Path, list[Usage]]], rounds: int, alike: float, others: tuple[str, ...] = ()
) -> dict[str, Row]:
    """Runs programs. Returns a row for each.

    Args:
        made: The programs, the first of which is that to compare with, and what their builds took.
        rounds: How often each runs.
        alike: The largest difference of scores, as a part of their norm.
        others: The programs that may differ more.

    Raises:
        SystemExit: A program computes something else.
    """
    rows = {name: costs(program, usages) for name, (program, usages) in made.items()}
    for name, row in rows.items():
        print(name, *(f"{key} {value:.1f}" for key, value in row.items()), sep="  ", flush=True)
    measured = speeds({name: program for name, (program, _) in made.items()}, rounds)
    first, *_ = made
    for name, row in rows.items():
        row["prefill ms"] = statistics.median(measured[name]["prefill"])
        row["decode tokens/s"] = 1000 / statistics.median(measured[name]["decode"])
        row["scores differ"] = distance(measured[name]["scores"], measured[first]["scores"])
        for kind in ("prefill", "decode"):
            found = ratio(measured[name][kind], measured[first][kind])
            row |= {f"{kind} / {first}": found.centre, f"{kind} low": found.low, f"{kind} high": found.high}
        if name not in others and row["scores differ"] > alike:
            sys.exit(f"{name} computes other scores than {first}: {row['scores differ']:.3f}")
    return rows


def ratio(times: list[float], others: list[float]) -> Interval:
    """The ratio of two programs' times in the same rounds, with its 95 % interval."""
    logarithms = [math.log(time / other) for time, other in zip(times, others, strict=True)]
    found = signed_rank(logarithms)
    assert found is not None
    return Interval(*map(math.exp, (found.centre, found.low, found.high)))


def bars(rows: dict[str, Row]) -> dict[str, dict[str, float]]:
    """Our figures as ratios to others', with the largest ratio that we promise."""
    own = rows["ours"]
    others = {name: row for name, row in rows.items() if name != "ours"}
    found = {
        f"{key} / best": {"ratio": own[key] / min(row[key] for row in others.values()), "at most": 1.0}
        for key in ("planned MB", "size MB")
    }
    for kind in ("prefill", "decode"):
        for name, row in others.items():  # its ratio has the other's time above ours
            low, high = 1 / row[f"{kind} high"], 1 / row[f"{kind} low"]
            found[f"{kind} time / {name}"] = {
                "ratio": 1 / row[f"{kind} / ours"],
                "low": low,
                "high": high,
                "at most": 1.0,
            }
    if "optimum" in rows:
        for key, most in (("export CPU s", 0.5), ("peak MB", 1.0)):
            found[f"{key} / optimum"] = {"ratio": own[key] / rows["optimum"][key], "at most": most}
    return found


def real_size(scratch: Path, model: str) -> dict[str, dict[str, float]]:
    """Builds a large model, builds it again from the cache, and after a change of one layer's weights.

    The plain script builds the smaller one too.

    Returns:
        The figures, with the largest that we promise.
    """
    checkpoint, out = scratch / model, scratch / f"{model}_out"
    command(sys.executable, HERE / "checkpoint.py", HERE / model / "config.json", checkpoint)
    weights = checkpoint / "model.safetensors"
    float32 = 2 * weights.stat().st_size / 1e6
    build = [sys.executable, "-m", "etbuild", "build", HERE / "real_size.yaml", "--root", checkpoint, "-o", out]
    build += ["--cache-dir", scratch / f"{model}_cache"]
    first = usage(*build)
    hit = min(seconds(lambda: command(*build)) for _ in range(3))
    copied = min(seconds(lambda: _copy_and_hash(out, scratch / "copy")) for _ in range(3))
    command(sys.executable, HERE / "change_layer.py", weights)
    changed = usage(*build, "--json")
    row = costs(out / "model.pte", [first])
    print(model, *(f"{key} {value:.1f}" for key, value in row.items()), sep="  ", flush=True)
    print(
        f"{model}, after a change of one layer's weights:",
        json.loads(changed.output[changed.output.index("{") :])["steps"],
        flush=True,
    )
    most = {"artifacts MB": 420.0, "planned MB": 654 / 8} if model == "qwen2_5" else {}
    by_plain = _plain_costs(checkpoint, scratch / f"{model}_plain.pte") if model == REAL_SIZES[0] else {}
    figures = {
        **by_plain,
        "artifacts MB": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 1e6,
        "planned MB": row["planned MB"],
        "export CPU s": row["export CPU s"],
        "export s": row["export s"],
        "one layer's weights, export s": changed.wall,
        "hit s": hit,
        "cp and sha256sum, s": copied,
    }
    promised = {
        "peak MB": {"value": row["peak MB"], "at most": 1.5 * float32},
        "hit / cp and sha256sum": {"ratio": hit / copied, "at most": 2.0},
    }
    said = {
        name: {"value": value, **({"at most": most[name]} if name in most else {})} for name, value in figures.items()
    }
    return {f"{model}: {name}": row for name, row in {**said, **promised}.items()}


def _plain_costs(checkpoint: Path, program: Path) -> dict[str, float]:
    taken = usage(sys.executable, HERE / "plain.py", checkpoint, REAL_LENGTH, program)
    return {"plain CPU s": taken.cpu, "plain s": taken.wall, "plain peak MB": taken.peak}


def _copy_and_hash(directory: Path, copy: Path) -> None:
    """What a hit has to do at least, by the system's own commands."""
    shutil.rmtree(copy, ignore_errors=True)
    command("cp", "-r", directory, copy)
    command("sha256sum", *sorted(file for file in copy.rglob("*") if file.is_file()))


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=BUILDS, default=list(BUILDS), metavar="NAME")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=[], metavar="SHAPE")
    parser.add_argument("--rounds", type=int, default=15, help="how often each program runs")
    parser.add_argument(
        "--real-size", action="store_true", help="build the models of 0.5 and 1.2 billion parameters too"
    )
    options = parser.parse_args()
    if options.rounds < FEWEST:
        parser.error(f"--rounds: at least {FEWEST} rounds give an interval")
    sections: dict[str, dict[str, dict[str, float]]] = {}
    frame.begin(options.write, options.loaded)
    with tempfile.TemporaryDirectory() as scratch:
        if options.only:
            names = [name for name in BUILDS if name in options.only]  # ours first
            sections["programs"] = compare(Path(scratch), names, options.rounds)
            if "ours" in options.only and len(options.only) > 1:
                sections["bars"] = bars(sections["programs"])
        for shape in options.shapes:
            sections[f"{shape}, float32"] = rows = compare_float32(Path(scratch), shape, options.rounds)
            sections[f"{shape}, float32: bars"] = bars(rows)
        if options.real_size:
            sections["real size"] = {}
            for model in REAL_SIZES:
                sections["real size"] |= real_size(Path(scratch), model)
    listed = {name: [{"": key, **row} for key, row in rows.items()] for name, rows in sections.items()}
    for name, rows_of_section in listed.items():
        print(f"\n## {name}\n\n{frame.table(rows_of_section)}")
    frame.write(options.write, "llm", listed, options.loaded)
    missed = [name for rows in sections.values() for name, row in rows.items() if _misses(row)]
    if missed:
        sys.exit(f"more than promised: {', '.join(missed)}")


def _misses(row: dict[str, float]) -> bool:
    return "at most" in row and row.get("low", row.get("ratio", row.get("value", 0.0))) > row["at most"]


if __name__ == "__main__":
    main()
