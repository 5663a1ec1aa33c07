"""Measures the cost of an edit: `etbuild build` and `bazel build` of examples/tiny_lm after one edit of each kind.

    python benchmarks/incremental/run.py [--runs 5] [--no-bazel] [--write docs/incremental.md]

Prints which steps ran and how long each command took. It also prints the ratio of the plain ExecuTorch script of
benchmarks/overhead, which rebuilds everything, to a build from the cache, in wall seconds of whole processes that run
in turn. It fails if the program of the plain script differs from the cached one.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from measure import compile_driver  # noqa: E402

from benchmarks.incremental import plot  # noqa: E402
from tests.helpers.workspaces import BUILD_DIRECTORIES, BUILD_FILES, NOT_COPIED  # noqa: E402

EXAMPLE = "examples/tiny_lm"
PLAIN = ROOT / "benchmarks/overhead/plain.py"


@dataclass(frozen=True)
class Edit:
    """One kind of edit. It is made in a checkout's directory and then undone."""

    name: str
    apply: Callable[[Path], object]


def replacing(path: str, old: str, new: str) -> Callable[[Path], object]:
    """Returns an edit that replaces the first occurrence of a text."""

    def apply(checkout: Path) -> object:
        text = (checkout / path).read_text("utf-8")
        assert old in text, f"{path} has no {old!r}"
        return (checkout / path).write_text(text.replace(old, new, 1), "utf-8")

    return apply


def adding(path: str, text: str) -> Callable[[Path], object]:
    """Returns an edit that adds a text at the end of a file."""

    def apply(checkout: Path) -> object:
        with (checkout / path).open("a", encoding="utf-8") as file:
            return file.write(text)

    return apply


SCALE = """\
import sys
from safetensors.torch import load_file, save_file

tensors = load_file(sys.argv[1])
tensors["head.weight"] *= 2
save_file(tensors, sys.argv[1])
"""


def scale_one_weight(checkout: Path) -> object:
    """Changes one tensor of the weights in another process, since memory of this process would count for its
    children."""
    return subprocess.run([sys.executable, "-c", SCALE, str(checkout / EXAMPLE / "tiny_lm.safetensors")], check=True)


PER_OPERATOR = "partitioners: [{backend: xnnpack, options: {per_op_mode: true}}]"
MANIFEST, MODEL = f"{EXAMPLE}/model.yaml", f"{EXAMPLE}/model.py"
EDITS = [
    Edit("nothing", lambda checkout: None),
    Edit("comment in the manifest", replacing(MANIFEST, "methods:\n", "methods:  # a remark\n")),
    Edit("check", replacing(MANIFEST, "methods:\n", "checks: {max_program_bytes: 900000}\nmethods:\n")),
    Edit("report option", replacing(MANIFEST, "methods:\n", "report: {blobs: false}\nmethods:\n")),
    Edit("comment in a source", replacing(MODEL, "import torch\n", "# A remark.\nimport torch\n")),
    Edit("source that nothing imports", replacing("examples/tiny_lm/unused.py", "1", "2")),
    Edit("weights", scale_one_weight),
    Edit("one method's partitioner options", replacing(MANIFEST, "  decode:\n", f"  decode:\n    {PER_OPERATOR}\n")),
    Edit("one method's example input", replacing(MANIFEST, "shape: [1, 16]", "shape: [1, 17]")),
    Edit("one method's source", replacing(MODEL, "return self._step(token, ", "return -self._step(token, ")),
    Edit("driver: the report", adding("toolchain/etbuild/report/report.py", "REMARK = 1\n")),
    Edit("driver: lowering", adding("toolchain/etbuild/lower/lower_methods.py", "REMARK = 1\n")),
]


def prepared(directory: Path) -> Path:
    """Makes a checkout to edit, with the files that a build reads."""
    for name in BUILD_FILES:
        shutil.copy2(ROOT / name, directory / name)
    for name in BUILD_DIRECTORIES:
        shutil.copytree(ROOT / name, directory / name, symlinks=True, ignore=NOT_COPIED)
    (directory / EXAMPLE / "unused.py").write_text("x = 1\n", "utf-8")
    build = directory / EXAMPLE / "BUILD"
    build.write_text(
        build.read_text("utf-8").replace('srcs = ["model.py"]', 'srcs = ["model.py", "unused.py"]'), "utf-8"
    )
    compile_driver(directory)
    return directory


@contextlib.contextmanager
def edited(checkout: Path, edit: Edit) -> Iterator[None]:
    """Applies an edit to the checkout, and undoes it at the end."""
    saved = checkout.with_name("saved")
    for name in ("examples", "toolchain"):
        shutil.copytree(checkout / name, saved / name, symlinks=True)
    edit.apply(checkout)
    try:
        yield
    finally:
        for path in saved.rglob("*"):
            target = checkout / path.relative_to(saved)
            if path.is_file() and not path.is_symlink() and not filecmp.cmp(path, target, shallow=False):
                shutil.copyfile(path, target)
        shutil.rmtree(saved)


@dataclass(frozen=True)
class Run:
    """One finished command: wall seconds, peak memory in megabytes, and what it printed."""

    seconds: float
    megabytes: float
    out: str


def run(command: list[str], **environment: str) -> Run:
    """Runs a command to its end and measures the process itself."""
    with tempfile.TemporaryFile("w+") as out:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        out.seek(0)
        return Run(seconds, usage.ru_maxrss / 1000, out.read())


def etbuild(checkout: Path, scratch: Path) -> Run:
    """Runs `etbuild build` in the checkout, with the checkout's own driver."""
    manifest, cache = str(checkout / MANIFEST), str(scratch / "cache")
    command = [
        sys.executable,
        "-m",
        "etbuild",
        "build",
        manifest,
        "--json",
        "--cache-dir",
        cache,
        "-o",
        str(scratch / "out"),
    ]
    return run(command, PYTHONPATH=str(checkout / "toolchain"))


def command_line(checkout: Path, scratch: Path) -> dict[str, tuple[str, float]]:
    """Returns the steps and seconds of each edit on the command line."""
    etbuild(checkout, scratch)
    found = {}
    for edit in EDITS:
        with edited(checkout, edit):
            done = etbuild(checkout, scratch)
        steps = [step for step, how in json.loads(done.out)["steps"].items() if how == "run"]
        found[edit.name] = (", ".join(steps) or "nothing", done.seconds)
        print(f"{edit.name:34} {found[edit.name][0]:24} {done.seconds:6.2f} s", flush=True)
    return found


def bazel(checkout: Path, scratch: Path) -> dict[str, tuple[str, float]]:
    """Returns the actions and seconds of each edit in Bazel, with a warm server."""
    from tests.helpers.workspaces import BAZEL, Workspace, packages_repository

    def developers(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*BAZEL, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    assert developers("build", "//toolchain:etbuild").returncode == 0
    packages = Path(developers("info", "output_base").stdout.strip()) / "external" / packages_repository(developers)
    workspace = Workspace(checkout, scratch / "bazel", packages)
    workspace.output_root.mkdir()
    arguments = (f"//{EXAMPLE}:tiny_lm", f"--disk_cache={scratch / 'disk_cache'}")
    found = {}
    try:
        workspace.build(*arguments)
        for edit in EDITS:
            with edited(checkout, edit):
                start = time.monotonic()
                done = workspace.build(*arguments)
                seconds = time.monotonic() - start
            workspace.build(*arguments)
            steps = [name.removeprefix("Executorch").lower() for name in done.mnemonics]
            found[edit.name] = (", ".join(steps) or "nothing", seconds)
            print(f"{edit.name:34} {found[edit.name][0]:24} {seconds:6.2f} s", flush=True)
    finally:
        workspace.stop()
    return found


def against_plain(checkout: Path, scratch: Path, runs: int) -> list[str]:
    """Compares the plain script with a build from the cache, in turn."""
    plain = scratch / "plain"
    command = [sys.executable, str(PLAIN), str(plain)]
    run(command)
    pairs = [(run(command), etbuild(checkout, scratch)) for _ in range(runs)]
    for name in ("tiny_lm.pte",):
        if not filecmp.cmp(plain / name, scratch / "out" / name, shallow=False):
            sys.exit(f"the two {name} are not the same")
    ratios = [slow.seconds / fast.seconds for slow, fast in pairs]
    slow, fast, peak = (
        statistics.median(values)
        for values in (
            [pair[0].seconds for pair in pairs],
            [pair[1].seconds for pair in pairs],
            [pair[1].megabytes for pair in pairs],
        )
    )
    return [
        f"plain script, which rebuilds: {slow:.2f} s; `etbuild build` from the cache: {fast:.2f} s, peak {peak:.0f} MB",
        f"ratio: {statistics.median(ratios):.1f} (pairs: {min(ratios):.1f} to {max(ratios):.1f}; medians of {runs}); "
        "same .pte bytes",
    ]


def table(ours: dict[str, tuple[str, float]], bazels: dict[str, tuple[str, float]]) -> list[str]:
    """Returns the edits as a table in Markdown."""
    lines = ["| edit | `etbuild build` runs | s | Bazel runs | s |", "|---|---|---:|---|---:|"]
    for edit in EDITS:
        steps, seconds = ours[edit.name]
        actions, wall = bazels.get(edit.name, ("not measured", float("nan")))
        lines.append(f"| {edit.name} | {steps} | {seconds:.2f} | {actions} | {wall:.2f} |")
    return lines


def write(path: Path, lines: list[str]) -> None:
    """Replaces the lines between the two marks in a document."""
    text = path.read_text("utf-8")
    begin, end = "<!-- measured -->", "<!-- end -->"
    path.write_text(re.sub(f"(?s){begin}.*{end}", "\n".join([begin, *lines, end]), text), "utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted pairs of the plain script and a hit (default: 5)")
    parser.add_argument("--no-bazel", action="store_true", help="measure only the command line")
    parser.add_argument("--write", type=Path, help="put the results into this document, and draw them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "checkout").mkdir()
        checkout = prepared(scratch / "checkout")
        ours = command_line(checkout, scratch)
        compared = against_plain(checkout, scratch, options.runs)
        print(*compared, sep="\n", flush=True)
        bazels = {} if options.no_bazel else bazel(checkout, scratch)
        torch = importlib.metadata.version("torch")
        machine = f"{os.cpu_count()} processors, Python {platform.python_version()}, torch {torch}"
        lines = ["", *table(ours, bazels), "", *(f"- {line}" for line in compared), f"- machine: {machine}", ""]
    if options.write:
        write(options.write, lines)
        plot.PICTURE.write_text(plot.drawn(options.write.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
