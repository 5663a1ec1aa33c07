"""Builds the examples and the gallery in each way, and compares the bytes.

    python -m benchmarks.bytes.run [WAY...] [--python PATH...] [--programs NAME...] [--write docs/reproducibility.md]

Each way builds in a new copy of the repository, without any cache:

| way | what builds |
|---|---|
| `command line` | `etbuild build` for each program |
| `1 processor` | a worker that may use one processor, with `--jobs 1` |
| `2 processors` | a worker with two, and `--jobs 2` |
| `4 threads, SSE4` | a worker whose surroundings ask for 4 threads and for older instructions, with `--jobs 4` |
| `2 threads, AVX2` | a worker whose surroundings ask for 2 threads and newer instructions |
| `sandbox` | Bazel, each step in a process of its own |
| `worker` | Bazel with persistent workers for the steps |
| `bazel 7` | the same as `sandbox` with another Bazel: the variable BAZEL7 |
| `remote` | remote execution: the variable REMOTE_EXECUTOR, such as grpc://127.0.0.1:8980 |
| `Python 3.13` | `etbuild build` with another Python, which has the packages of the driver: `--python PATH` |

The ways of Bazel leave out the gallery. Of another Python, the indexes are not compared: they name the packages that
made a program, and these have other files for each Python. The results of a way are kept in
benchmarks/results/bytes.json, until a file that a build reads changes. So a command that was stopped continues where it
was. It fails if two ways made different bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.frame import ROOT
from benchmarks.monorepo.run import packages
from tests.conftest import EXAMPLES, MANIFESTS, variant_options
from tests.helpers.computations import AVX2, SSE4
from tests.helpers.worker_client import Worker
from tests.helpers.workspaces import BAZEL, BUILD_DIRECTORIES, BUILD_FILES, NOT_COPIED, WORKERS, packages_repository

RESULTS = ROOT / "benchmarks/results/bytes.json"
KINDS = ("pte", "ptd", "index.json", "report.json")
BEGIN, END = "<!-- bytes: python -m benchmarks.bytes.run -->\n", "<!-- end of bytes -->\n"
PYTHONS_BEGIN, PYTHONS_END = "<!-- bytes of Pythons: python -m benchmarks.bytes.run -->\n", "<!-- end of Pythons -->\n"
COMMAND_LINE, PYTHON = "command line", "Python "
OF_BAZEL = ("sandbox", "worker", "bazel 7", "remote")
SECONDS = 1800.0
SANDBOX = "--spawn_strategy=linux-sandbox"

GALLERY = {f"gallery/{path.stem}": path for path in sorted((EXAMPLES / "gallery").glob("*.yaml"))}
POPULATION = {**MANIFESTS, **GALLERY}
"""The manifest of each program."""

Digests = dict[str, dict[str, str]]
"""The sha256 of each file of each program."""
Way = Callable[[Path, Sequence[str]], Digests]
"""Builds programs, below a directory."""


def sources() -> str:
    """Returns a digest of the files that a build reads."""
    found = hashlib.sha256()
    listed = subprocess.run(
        ["git", "ls-files", "-z", *BUILD_FILES, "examples", "rules", "schemas", "toolchain"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        file = ROOT / name
        content = str(file.readlink()).encode() if file.is_symlink() else file.read_bytes()
        found.update(f"{name}\0".encode() + hashlib.sha256(content).digest())
    return found.hexdigest()


def copied(directory: Path) -> Path:
    """Copies the files that a build reads."""
    directory.mkdir(parents=True)
    for name in BUILD_FILES:
        shutil.copy2(ROOT / name, directory / name)
    for name in BUILD_DIRECTORIES:
        shutil.copytree(ROOT / name, directory / name, symlinks=True, ignore=NOT_COPIED)
    return directory


def digests(program: str, directory: Path) -> dict[str, str]:
    """Returns the digests of a program's files in a directory."""
    files = sorted(path for kind in KINDS for path in directory.glob(f"{program}.*{kind}"))
    # `vision.coreml.pte` is a file of another program than `vision.pte`.
    others = [name for name in MANIFESTS if name.startswith(f"{program}.")]
    ours = [path for path in files if not any(path.name.startswith(f"{other}.") for other in others)]
    assert any(path.suffix == ".pte" for path in ours), f"{directory} has no {program}.pte"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in ours}


def words(name: str, checkout: Path, out: Path) -> list[str | Path]:
    """Returns the arguments of `etbuild` that build a program of a copy."""
    place = checkout / "examples" / POPULATION[name].relative_to(EXAMPLES)
    return ["build", place, *variant_options(name), "--no-cache", "-o", out / name]


def command_line(scratch: Path, names: Sequence[str], python: str = sys.executable) -> Digests:
    """Builds with `etbuild build`, of the copied driver."""
    checkout = copied(scratch / "command line")
    environment = {**os.environ, "PYTHONPATH": str(checkout / "toolchain")}
    for name in names:
        command = [python, "-m", "etbuild", *words(name, checkout, scratch / "out")]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {name: digests(Path(name).name, scratch / "out" / name) for name in names}


def with_worker(processors: int, jobs: int, **surroundings: str) -> Way:
    """Returns a function that builds with requests to a worker.

    Args:
        processors: The number of processors that it may use, if there are so many.
        jobs: The number of processes for each build.
        surroundings: Environment variables.
    """

    def build(scratch: Path, names: Sequence[str]) -> Digests:
        checkout = copied(scratch / "checkout")
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(every)[:processors])
        try:
            worker = Worker(scratch, **surroundings)
        finally:
            os.sched_setaffinity(0, every)
        try:
            for name in names:
                worker.send(*words(name, checkout, scratch / "out"), "--jobs", jobs)
                response = worker.receive(SECONDS)
                if response.exit_code:
                    raise SystemExit(f"{name}: {response.output}")
        finally:
            worker.end()
        return {name: digests(Path(name).name, scratch / "out" / name) for name in names}

    return build


def with_bazel(*options: str, modern: str = "") -> Way:
    """Returns a function that builds with Bazel."""

    def build(scratch: Path, names: Sequence[str]) -> Digests:
        checkout = copied(scratch / "checkout")
        output_root = scratch / "bazel"
        output_root.mkdir()
        made = packages()
        binds = {"BAZEL7_BIND": f"{made} {checkout}", "BAZEL7_OUTPUT_ROOT": str(output_root)}
        start = [*shlex.split(modern), str(checkout)] if modern else [*BAZEL, f"--output_user_root={output_root}"]

        def bazel(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*start, *arguments],
                cwd=checkout,
                env={**os.environ, **binds},
                capture_output=True,
                text=True,
                check=False,
            )

        try:
            override = f"--override_repository={packages_repository(bazel)}={made}"
            done = bazel("build", override, "--symlink_prefix=made-", *options, "//examples/...")
            if done.returncode:
                raise SystemExit(done.stderr)
            places = {
                name: checkout / "made-bin/examples" / path.parent.relative_to(EXAMPLES)
                for name, path in MANIFESTS.items()
                if name in names
            }
            return {name: digests(name, place) for name, place in places.items()}
        finally:
            bazel("shutdown")

    return build


def version(python: str) -> str:
    """Returns the version of an interpreter, such as `3.13`."""
    command = [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def ways(pythons: Sequence[str]) -> dict[str, Way]:
    """Returns the ways that this machine has.

    Args:
        pythons: Paths of other interpreters.
    """
    found: dict[str, Way] = {
        COMMAND_LINE: command_line,
        "1 processor": with_worker(1, 1),
        "2 processors": with_worker(2, 2),
        "4 threads, SSE4": with_worker(4, 4, **SSE4),
        "2 threads, AVX2": with_worker(4, 2, **AVX2),
        "sandbox": with_bazel(SANDBOX),
        "worker": with_bazel(SANDBOX, *WORKERS),
    }
    if os.environ.get("BAZEL7"):
        found["bazel 7"] = with_bazel(SANDBOX, modern=os.environ["BAZEL7"])
    if os.environ.get("REMOTE_EXECUTOR"):
        found["remote"] = with_bazel(f"--remote_executor={os.environ['REMOTE_EXECUTOR']}", "--spawn_strategy=remote")
    return found | {f"{PYTHON}{version(path)}": partial(command_line, python=path) for path in pythons}


def table(built: dict[str, Digests]) -> str:
    """Returns the table: the beginning of the digest over a program's files, in each way."""
    rows = ["| program | files | " + " | ".join(built) + " |", "|---|---|" + "---|" * len(built)]
    for name in POPULATION:
        made = [of_way.get(name) for of_way in built.values()]
        if any(made):
            cells = [
                hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()[:8] if each else ""
                for each in made
            ]
            rows.append(f"| `{name}` | {max(len(each or ()) for each in made)} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def of_pythons(built: dict[str, Digests]) -> dict[str, Digests]:
    """Returns what the command line made with each Python, without the indexes."""
    named = {f"{PYTHON}{version(sys.executable)}": built.get(COMMAND_LINE, {})}
    named |= {way: of_way for way, of_way in sorted(built.items()) if way.startswith(PYTHON)}
    return {
        way: {
            name: {file: sha256 for file, sha256 in files.items() if not file.endswith(".index.json")}
            for name, files in of_way.items()
        }
        for way, of_way in named.items()
    }


def written(page: str, begin: str, end: str, content: str) -> str:
    """Returns a page with other content between two marks."""
    return re.sub(
        re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{content}\n{end}", page, flags=re.DOTALL
    )


def differences(built: dict[str, Digests]) -> list[str]:
    """Returns what two ways made differently."""
    found = []
    for name in POPULATION:
        made = {way: of_way[name] for way, of_way in built.items() if name in of_way}
        for file in sorted({file for files in made.values() for file in files}):
            shown = {way: files.get(file, "") for way, files in made.items()}
            if len(set(shown.values())) > 1:
                found.append(f"{name}, {file}: {', '.join(f'{way} {each[:12]}' for way, each in shown.items())}")
    return found


def main() -> None:
    """Builds in the ways that are missing, compares, and writes the table."""
    parser = argparse.ArgumentParser(
        description="Build the examples and the gallery in each way, and compare the bytes."
    )
    parser.add_argument("ways", nargs="*", metavar="WAY", help="the ways that are missing and shall run (default: all)")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write the table into this page, between its two marks"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="PATH", help="another Python, with the packages of the driver"
    )
    parser.add_argument("--programs", nargs="+", choices=POPULATION, metavar="NAME", default=list(POPULATION))
    options = parser.parse_args()
    saved = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    key = sources()
    built: dict[str, Digests] = saved["ways"] if saved.get("sources") == key else {}
    there = ways(options.python)
    for way in options.ways or there:
        if way not in there:
            raise SystemExit(f"there is no way `{way}` here. There are: {', '.join(there)}")
        missing = [name for name in options.programs if name not in built.get(way, {})]
        if way.startswith(OF_BAZEL):
            missing = [name for name in missing if name in MANIFESTS]
        if missing:
            with tempfile.TemporaryDirectory() as scratch:
                built[way] = {**built.get(way, {}), **there[way](Path(scratch), missing)}
            RESULTS.write_text(json.dumps({"sources": key, "ways": built}, indent=1) + "\n", "utf-8")
            print(f"{way}: built", flush=True)
    pythons = of_pythons(built)
    surroundings = {way: of_way for way, of_way in built.items() if not way.startswith(PYTHON)}
    print(table(surroundings))
    print(table(pythons))
    if wrong := differences(surroundings) + differences(pythons):
        raise SystemExit("\n".join(wrong))
    if options.write:
        page = options.write.read_text("utf-8")
        if len(surroundings) > 1:
            page = written(page, BEGIN, END, table(surroundings))
        if len(pythons) > 1:
            page = written(page, PYTHONS_BEGIN, PYTHONS_END, table(pythons))
        options.write.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
