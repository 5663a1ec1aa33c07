"""Measures the figures that pages show, and writes the pages, with the commit that was measured.

    python -m benchmarks.run --list
    python -m benchmarks.run (--all | --only NAME...) [--budget MINUTES] [--loaded] [--write]

Benchmarks that measure time need a quiet machine. Each is asked before and after whether others work. If so, it fails,
and nothing of it is kept; with `--loaded` it goes on, and the pages say so. `--budget` takes the shortest useful form
of each, in the order of the table, as long as there is time; and then the whole form of those for which time is left.
Without `--write` the figures are only printed. Each benchmark is a command of its own, with more options.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import RESULTS, ROOT


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        command: Arguments of Python. `RESULTS` is the directory of the results, `TRIED` what earlier results have.
        minutes: How long it takes on a quiet machine with two processors, about.
        short: More arguments, for its shortest useful form. None if it has only one form.
        short_minutes: How long that takes.
        needs: A variable that it needs.
        own: The page that it writes itself, in its own way. The others take the options of `frame.parser`.
        printed: The file of results that gets what it prints.
    """

    command: str
    minutes: float
    short: str | None = None
    short_minutes: float = 0.0
    needs: str = ""
    own: str = ""
    printed: str = ""


_LLM = "-m benchmarks.llm.run --shapes lfm2 qwen3_5 qwen3_moe granitemoe --real-size"
_FUZZ = "-m tests.fuzz.run --seconds 1200 --jobs 2 --results RESULTS/fuzz.json"
_FAULTS = "-m tests.faults.run_campaign --kills 200 --faults 200 --seconds 3600"
_FAMILIES, _TASKS = (
    f"-m benchmarks.families.run {option} TRIED --write docs/families.md" for option in ("--only", "--tasks")
)
BENCHMARKS = {
    "zoo": Benchmark("-m benchmarks.zoo.run", 58, "--pairs 1", 20),
    "incremental": Benchmark("-m benchmarks.incremental.run", 9, "--runs 3", 7, needs="BAZEL"),
    "lowering": Benchmark("-m benchmarks.lowering.run", 42, "--runs 2 --only bars edit switches", 18),
    "growth": Benchmark("-m benchmarks.growth.run", 55, "--only layers transformers --runs 1 --largest 8", 6),
    "latency": Benchmark("-m benchmarks.latency.run", 11, "--models llama bert vit --seconds 4", 3),
    "comparison": Benchmark("-m benchmarks.comparison.run", 24, "--pairs 1", 9),
    "checkpoints": Benchmark("-m benchmarks.checkpoints.run", 55, "--pairs 1 --models llama bert resnet", 3),
    "llm": Benchmark(_LLM, 65, "--only ours plain optimum --shapes", 30),
    "memory": Benchmark("-m benchmarks.memory.run", 6, "--formats gptq", 2),
    "outside": Benchmark("-m benchmarks.outside.run", 20, "--models bert vit", 2),
    "estimates": Benchmark("-m benchmarks.estimates.run", 25, "--models llama bert --only programs", 3),
    "bazel": Benchmark("-m benchmarks.bazel.run", 2, needs="BAZEL"),
    "monorepo": Benchmark("-m benchmarks.monorepo.run", 20, "--real 0", 10, needs="BAZEL"),
    "upgrades": Benchmark("-m benchmarks.upgrades.run", 2),
    "mutations": Benchmark("-m benchmarks.comparison.mutations --write RESULTS", 55, own="docs/checks.md"),
    "bytes": Benchmark(
        "-m benchmarks.bytes.run --write docs/reproducibility.md", 60, needs="BAZEL", own="docs/reproducibility.md"
    ),
    "families": Benchmark(_FAMILIES, 240, own="docs/families.md"),
    "families-of-tasks": Benchmark(_TASKS, 60, own="docs/families.md"),
    "fuzz": Benchmark(_FUZZ, 260, own="docs/reliability.md"),
    "faults": Benchmark(_FAULTS, 60, own="docs/reliability.md", printed="faults.json"),
}
"""By name, those first whose figures are worth most."""
QUIET = {name for name, one in BENCHMARKS.items() if not one.own} - {"upgrades", "estimates", "outside"}
"""Those that measure time."""


def chosen(names: list[str], budget: float | None) -> dict[str, bool]:
    """The benchmarks that run, each with whether it runs in its short form."""
    if budget is None:
        return dict.fromkeys(names, False)
    found: dict[str, bool] = {}
    for name in names:
        one = BENCHMARKS[name]
        takes = one.minutes if one.short is None else one.short_minutes
        if takes <= budget:
            found[name], budget = one.short is not None, budget - takes
    for name, short in found.items():
        more = BENCHMARKS[name].minutes - BENCHMARKS[name].short_minutes
        if short and more <= budget:
            found[name], budget = False, budget - more
    return found


def command(name: str, results: Path | None, short: bool, loaded: bool) -> list[str]:
    """The command of a benchmark."""
    one = BENCHMARKS[name]
    words = [*one.command.replace("RESULTS", str(results)).split(), *(one.short or "").split() * short]
    if "TRIED" in words:
        place = words.index("TRIED")
        words[place : place + 1] = tried(RESULTS / f"{name}.jsonl")
    if not one.own:
        words += [*(["--write", str(results)] if results else []), *["--loaded"] * loaded]
    return [sys.executable, *words]


def tried(path: Path) -> list[str]:
    """The families in a file of results."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [*dict.fromkeys(row.get("name", row["family"]) for row in rows)]


def pages(name: str) -> list[str]:
    """The pages that show its figures."""
    if own := BENCHMARKS[name].own:
        return [own]
    marked = re.compile(rf"<!-- [^\n]*--only [^\n]*\b{name}\b[^\n]*-->")
    docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if marked.search(path.read_text("utf-8"))]
    return [f"benchmarks/results/{name}.md", *(str(path.relative_to(ROOT)) for path in docs)]


def measure(name: str, short: bool, loaded: bool, write: bool) -> None:
    """Runs one benchmark, and keeps its results if the machine was quiet until its end.

    Raises:
        SystemExit: It fails. Results that name their commit are kept: it may have missed what it promises.
    """
    one = BENCHMARKS[name]
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(shutil.copytree(RESULTS, Path(scratch, "results")))
        called = command(name, results if write else None, short, loaded)
        if one.own:
            (results / f"{name}.json").unlink(missing_ok=True)  # or else the command continues it
        with (results / (one.printed or "printed")).open("w", encoding="utf-8") as file:
            done = subprocess.run(called, check=False, cwd=ROOT, stdout=file if one.printed else None)
        if done.returncode and one.own:
            raise SystemExit(f"{name} failed")
        if not loaded and name in QUIET and (used := frame.processors_of_others()) > frame.OTHERS:
            raise SystemExit(f"{name}: now others use {used:.1f} processors, so nothing of it is kept")
        (results / "printed").unlink(missing_ok=True)
        if write:
            if not one.own or one.printed or "RESULTS" in one.command:  # others write in place
                shutil.copytree(results, RESULTS, dirs_exist_ok=True)
            if one.own:
                stamp(name)
            subprocess.run([sys.executable, "-m", "tools.write_figures"], check=True, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"{name} failed, or missed what it promises")


def stamp(name: str) -> None:
    """Notes the commit of results in a form of their own."""
    path = RESULTS / "measured.json"
    stamps = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**stamps, name: frame.origin(loaded=False)}, indent=1) + "\n", "utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="measure everything")
    which.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="measure these")
    which.add_argument("--list", action="store_true", help="print what there is, with minutes and pages")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="take short forms, and no more time")
    parser.add_argument("--loaded", action="store_true", help="measure while others work; the pages say so")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    options = parser.parse_args()
    names = options.only or list(BENCHMARKS)
    runs = chosen(names, options.budget)
    if options.list:
        for name in names:
            one = BENCHMARKS[name]
            minutes = f"{one.minutes:.0f} min" + (f", short {one.short_minutes:.0f}" if one.short else "")
            print(f"{name:12} {minutes:18} {' '.join(pages(name))}")
        print(f"all: {sum(one.minutes for one in BENCHMARKS.values()) / 60:.0f} hours")
        return
    if options.write and importlib.util.find_spec("matplotlib") is None:
        sys.exit("`--write` draws pictures: pip install -r benchmarks/requirements.txt")
    failed: list[str] = []
    missed = {name: "no time is left" for name in names if name not in runs}
    for name, short in runs.items():
        if (needed := BENCHMARKS[name].needs) and needed not in os.environ:
            missed[name] = f"it needs the variable {needed}"
            continue
        start = time.monotonic()
        print(f"== {name}{' in its short form' * short}", flush=True)
        try:
            measure(name, short, options.loaded, options.write)
        except SystemExit as error:
            failed.append(str(error))
        print(f"== {name}: {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    for name, why in missed.items():
        print(f"{name} was left out: {why}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
