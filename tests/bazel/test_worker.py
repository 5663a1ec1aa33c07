"""Actions in persistent workers: their outputs, the files that they see, and the state after a failure."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.manifests import one_method
from tests.helpers.worker_client import alive, wait_until
from tests.helpers.workspaces import WORKERS, Result, Workspace

INTERRUPTED = 8  # Bazel's exit code
MODES = {"multiplex": "--noworker_sandboxing", "sandboxed": "--worker_sandboxing"}
BUILD = """\
load("//rules:defs.bzl", "executorch_program")

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
)
"""
# A toolchain without the declaration that its driver is a worker.
TOOLCHAIN = """\
load("@rules_executorch//rules:defs.bzl", "executorch_toolchain")

executorch_toolchain(name = "own", driver = "@rules_executorch//toolchain:etbuild")

toolchain(name = "own_toolchain", toolchain = ":own", toolchain_type = "@rules_executorch//toolchain:toolchain_type")
"""
MANIFEST = one_method()
MODEL = """\
import torch

def create():
    return torch.nn.Linear(8, 4)
"""


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def served(
    snapshot: Path, tmp_path_factory: pytest.TempPathFactory, output_root: Path, packages: Path
) -> Iterator[Workspace]:
    """A checkout with its own package, whose Bazel server uses workers."""
    directory = shutil.copytree(snapshot, tmp_path_factory.mktemp("served") / "checkout", symlinks=True)
    workspace = Workspace(directory, output_root, packages)
    for name, text in {"BUILD": BUILD, "net.yaml": MANIFEST, "model.py": MODEL, "undeclared.txt": "1"}.items():
        workspace.write(f"net/{name}", text)
    yield workspace
    workspace.stop()


@pytest.fixture(scope="module")
def sandboxed(served: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk cache of a build without workers."""
    cache = tmp_path_factory.mktemp("without_workers")
    assert "worker" not in served.build("//examples/mlp", f"--disk_cache={cache}").err.rpartition("processes:")[2]
    return cache


def in_workers(workspace: Workspace, target: str, *options: str, expect: int = 0) -> Result:
    return workspace.build(target, *WORKERS, *options, expect=expect)


@pytest.mark.parametrize("mode", MODES)
def test_workers_make_what_the_sandbox_makes(served: Workspace, sandboxed: Path, mode: str, tmp_path: Path) -> None:
    served.run("clean")
    result = in_workers(served, "//examples/mlp", f"--disk_cache={tmp_path}", MODES[mode])
    assert "6 worker" in result.err
    assert names(tmp_path / "ac") == names(sandboxed / "ac")
    assert names(tmp_path / "cas") == names(sandboxed / "cas")
    served.run("clean")
    again = served.build("//examples/mlp", f"--disk_cache={tmp_path}")
    assert [name for name in again.mnemonics if name.startswith("Executorch")] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_outlives_what_fails_in_it(served: Workspace, mode: str) -> None:
    started = []
    for edit, message in (
        ("    raise RuntimeError('no such luck')\n", "RuntimeError: no such luck"),
        ("    import os; os.kill(os.getpid(), 9)\n", "ended with SIGKILL"),
        (f"    # {mode}\n", "Build completed successfully"),
    ):
        served.edit("net/model.py", "    return", edit + "    return")
        code = int("completed" not in message)
        said = in_workers(served, "//net", MODES[mode], "--worker_verbose", expect=code).err
        served.edit("net/model.py", edit, "")
        assert message in said
        started += [line for line in said.splitlines() if "Created new" in line and "ExecutorchExport" in line]
    assert len(started) <= 1


@pytest.mark.parametrize("mode", MODES)
def test_what_a_model_sees_in_a_worker(served: Workspace, mode: str) -> None:
    looks = """\
    import os, socket
    seen = [os.environ["HOME"], [name for _, name in socket.if_nameindex()], os.path.exists("net/undeclared.txt")]
    raise RuntimeError(f"sees {seen}")
"""
    served.edit("net/model.py", "    return", looks + "    return")
    try:
        said = in_workers(served, "//net", MODES[mode], expect=1).err
    finally:
        served.edit("net/model.py", looks, "")
    assert "sees ['/nonexistent', ['lo'], False]" in said


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupted_build_leaves_nothing_running(served: Workspace, mode: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    waits = (
        f"    import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(60)\n"
    )
    served.edit("net/model.py", "    return", waits + "    return")
    options = [*served.options(tmp_path / "execution.log"), *WORKERS, MODES[mode], "--experimental_worker_cancellation"]
    command = served.command("build", *options, "//net")
    try:
        build = subprocess.Popen(command, cwd=served.directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: started.exists() and started.read_text(), 60)
        build.send_signal(signal.SIGINT)
        assert build.wait(20) == INTERRUPTED
    finally:
        served.edit("net/model.py", waits, "")
    wait_until(lambda: not alive(int(started.read_text())))
    in_workers(served, "//net", MODES[mode])


def test_actions_support_workers_only_if_the_toolchain_declares_it(served: Workspace) -> None:
    served.write("own/BUILD", TOOLCHAIN)
    actions = 'mnemonic("Executorch(Export|Lower)", //net)'
    assert "supports-workers: 1" in served.run("aquery", actions).out
    own = served.run("aquery", actions, "--extra_toolchains=//own:own_toolchain").out
    assert "block-network" in own
    assert "supports-workers" not in own
