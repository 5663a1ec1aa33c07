"""Measures the cost of an edit: `etbuild build` and `bazel build` of examples/tiny_lm after one edit of each kind.

    python -m benchmarks.incremental.run [--runs 5] [--no-bazel] [--write benchmarks/results]

Prints which steps ran and how long each command took. It also prints the ratio of the plain ExecuTorch script, which
rebuilds everything, to a build from the cache, in wall seconds of whole processes that run in turn. It fails if the
program of the plain script differs from the cached one.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import ROOT, Row
from benchmarks.measure import Usage, compile_driver, usage
from benchmarks.monorepo.run import packages
from tests.helpers.workspaces import BUILD_DIRECTORIES, BUILD_FILES, NOT_COPIED, Workspace

EXAMPLE = "examples/tiny_lm"
PLAIN = ROOT / "benchmarks/plain.py"


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


def etbuild(checkout: Path, scratch: Path) -> Usage:
    """Runs `etbuild build` in the checkout, with the checkout's own driver."""
    build = [sys.executable, "-m", "etbuild", "build", checkout / MANIFEST, "--json"]
    where = ["--cache-dir", scratch / "cache", "-o", scratch / "out"]
    return usage(*build, *where, PYTHONPATH=str(checkout / "toolchain"))


def command_line(checkout: Path, scratch: Path) -> dict[str, tuple[str, float]]:
    """Returns the steps and seconds of each edit on the command line."""
    etbuild(checkout, scratch)
    found = {}
    for edit in EDITS:
        with edited(checkout, edit):
            done = etbuild(checkout, scratch)
        said = json.loads(done.output[done.output.index("{") :])
        steps = [step for step, how in said["steps"].items() if how == "run"]
        found[edit.name] = (", ".join(steps) or "nothing", done.wall)
        print(f"{edit.name:34} {found[edit.name][0]:24} {done.wall:6.2f} s", flush=True)
    return found


def bazel(checkout: Path, scratch: Path) -> dict[str, tuple[str, float]]:
    """Returns the actions and seconds of each edit in Bazel, with a warm server."""
    workspace = Workspace(checkout, scratch / "bazel", packages())
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


def against_plain(checkout: Path, scratch: Path, runs: int) -> Row:
    """Compares the plain script with a build from the cache, in turn."""
    plain = scratch / "plain"
    command = [sys.executable, PLAIN, checkout / MANIFEST, plain]
    usage(*command)
    pairs = [(usage(*command), etbuild(checkout, scratch)) for _ in range(runs)]
    if not filecmp.cmp(plain / "tiny_lm.pte", scratch / "out/tiny_lm.pte", shallow=False):
        sys.exit("the two tiny_lm.pte are not the same")
    ratios = [slow.wall / fast.wall for slow, fast in pairs]
    return {
        "plain s": statistics.median(slow.wall for slow, _ in pairs),
        "from the cache s": statistics.median(fast.wall for _, fast in pairs),
        "from the cache MB": statistics.median(fast.peak for _, fast in pairs),
        "ratio": statistics.median(ratios),
        "ratio low": min(ratios),
        "ratio high": max(ratios),
        "runs": runs,
    }


def rows(ours: dict[str, tuple[str, float]], bazels: dict[str, tuple[str, float]]) -> list[Row]:
    """The rows of the edits."""
    found = []
    for edit in EDITS:
        steps, seconds = ours[edit.name]
        found.append({"edit": edit.name, "`etbuild build` runs": steps, "s": seconds})
        if edit.name in bazels:
            actions, wall = bazels[edit.name]
            found[-1] |= {"Bazel runs": actions, "Bazel s": wall}
    return found


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="counted pairs of the plain script and a hit (default: 5)")
    parser.add_argument("--no-bazel", action="store_true", help="measure only the command line")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "checkout").mkdir()
        checkout = prepared(scratch / "checkout")
        ours = command_line(checkout, scratch)
        compared = against_plain(checkout, scratch, options.runs)
        frame.tell(compared)
        bazels = {} if options.no_bazel else bazel(checkout, scratch)
    sections = {"edits": rows(ours, bazels), "plain script": [compared]}
    frame.write(options.write, "incremental", sections, options.loaded)


if __name__ == "__main__":
    main()
