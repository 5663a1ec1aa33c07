"""A real remote executor, whose actions see their inputs, `/usr` and `/etc`, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.workspaces import Result, Workspace

from . import protocol
from .servers import BuildBox

GOLDEN = Path(__file__).parents[1] / "golden/programs"
MLP = "//examples/mlp"
WAIT_SECONDS = 300
pytestmark = pytest.mark.long("executor")  # all or none: the first build uploads and splits the packages


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildBox]:
    if (why := BuildBox.missing()) is not None:
        pytest.skip(why)
    server = BuildBox(tmp_path_factory.mktemp("executor"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def first(executor: BuildBox, new_workspace: Callable[[str], Workspace]) -> Workspace:
    return new_workspace("first")


@pytest.fixture(scope="module")
def built(executor: BuildBox, first: Workspace) -> Result:
    """A program that is built and compared with its lockfile."""
    return first.run("test", *executor.options, "--test_output=errors", f"{MLP}/...")


def runners(result: Result) -> set[str]:
    """How the actions of a build were run, from Bazel's last lines: `9 processes: 4 internal, 5 remote.`"""
    [summary] = re.findall(r"\d+ process(?:es)?: (.+)\.", result.err)
    return {part.split(" ", 1)[1] for part in summary.split(", ")}


def digests(workspace: Workspace, program: str) -> dict[str, str]:
    """The digests of a program's files, as `tests/golden/programs` has them."""
    pte = workspace.output(program)
    golden = json.loads((GOLDEN / f"{pte.name}.json").read_text("utf-8"))
    return {file: hashlib.sha256(pte.with_name(file).read_bytes()).hexdigest() for file in golden}


def golden(program: str) -> dict[str, str]:
    expected: dict[str, str] = json.loads((GOLDEN / f"{program}.json").read_text("utf-8"))
    return expected


def write_program(workspace: Workspace, name: str, *, size: int, before: str = "") -> str:
    """Writes a package with a program, and returns its label. `before` is code of the model."""
    workspace.write(
        f"{name}/model.py", f"import torch\n{before}\ndef create():\n    return torch.nn.Linear({size}, 2)\n"
    )
    workspace.write(
        f"{name}/net.yaml",
        f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create"}}
defaults: {{partitioners: [xnnpack]}}
methods: {{forward: {{example_inputs: [{{shape: [1, {size}]}}]}}}}
""",
    )
    workspace.write(
        f"{name}/BUILD",
        """\
load("//rules:defs.bzl", "executorch_program")

executorch_program(name = "net", srcs = ["model.py"], manifest = "net.yaml")
""",
    )
    return f"//{name}:net"


def test_a_program_and_its_lock_test_run_remotely(built: Result, first: Workspace) -> None:
    assert runners(built) == {"internal", "local", "remote"}
    assert ", 1 local, " in built.err  # it splits the packages, which are installed on this machine
    assert "ExecutorchPackages" in built.mnemonics
    assert re.search(r"//examples/mlp:update_test\s+PASSED", built.out + built.err)
    assert digests(first, "examples/mlp/mlp") == golden("mlp")


def test_a_second_checkout_downloads_what_is_asked_for(
    executor: BuildBox, built: Result, new_workspace: Callable[[str], Workspace]
) -> None:
    second = new_workspace("second")
    nothing = second.build(*executor.options, "--remote_download_minimal", MLP)
    assert nothing.mnemonics == []
    assert "remote cache hit" in nothing.err
    assert not second.output("examples/mlp/mlp.pte").exists()
    program = second.build(*executor.options, "--remote_download_toplevel", MLP)
    assert program.mnemonics == []
    assert digests(second, "examples/mlp/mlp") == golden("mlp")


def test_dynamic_execution_makes_the_same_bytes(executor: BuildBox, built: Result, first: Workspace) -> None:
    both = ["--internal_spawn_scheduler"]
    for step in ("ExecutorchExport", "ExecutorchLower"):
        both += [f"--strategy={step}=dynamic", f"--dynamic_local_strategy={step}=linux-sandbox"]
    first.build(*executor.options, *both, "//examples/shared_weights:embedder")
    assert digests(first, "examples/shared_weights/embedder") == golden("embedder")


def test_a_server_that_is_killed_and_comes_back(
    executor: BuildBox, built: Result, first: Workspace, tmp_path: Path
) -> None:
    target = write_program(first, "killed", size=31)
    log = tmp_path / "build.log"
    options = [*first.options(tmp_path / "execution.log"), *executor.options, "--remote_retries=20"]
    with log.open("wb") as stream:
        build = subprocess.Popen(
            first.command("build", *options, target), cwd=first.directory, stdout=stream, stderr=stream
        )
    until = time.monotonic() + WAIT_SECONDS
    while "Exporting" not in log.read_text():
        assert build.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    executor.kill()
    executor.start()
    assert build.wait() == 0, log.read_text()
    assert first.output("killed/net.pte").stat().st_size > 0


def test_actions_ask_only_for_what_every_server_has(executor: BuildBox, built: Result, first: Workspace) -> None:
    assert built.code == 0  # the server has the packages
    log = first.directory.parent / "calls"
    target = write_program(first, "asked_for", size=5)
    first.build(*executor.options, f"--experimental_remote_grpc_log={log}", target)

    def store(digest: str) -> bytes:
        return executor.blob(digest).read_bytes()

    # Others only copy files: those of the driver name the Python of this machine, as the last one to try.
    steps = [each for each in protocol.calls(log).actions if protocol.arguments(store, each)[0] != "/bin/bash"]
    assert len(steps) == 6  # plan, export, two times lower, compare and report
    checked: set[str] = set()
    assert [protocol.problems(store, action, checked) for action in steps] == [[]] * 6
    made = first.output("asked_for")
    assert [path for path in made.rglob("*") if path.is_symlink()] == []


def test_a_blob_that_the_server_has_dropped_is_made_again(executor: BuildBox, built: Result, first: Workspace) -> None:
    pte = golden("mlp")["mlp.pte"]
    blob = executor.blob(pte)
    content = blob.read_bytes()
    blob.unlink()
    first.run("clean")
    first.build(*executor.options, MLP)
    assert digests(first, "examples/mlp/mlp") == golden("mlp")
    assert blob.read_bytes() == content


def test_with_a_shared_tmp_an_action_changes_nothing_for_the_next(
    executor: BuildBox, built: Result, first: Workspace, tmp_path: Path
) -> None:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    executor.kill()
    shared = BuildBox(executor.directory, tmp)
    try:
        shared.start()
        edit = "with open(torch.__file__, 'a') as file: file.write('raise SystemExit(7)')"
        edited = first.build(*shared.options, write_program(first, "edits", size=33, before=edit), expect=1)
        assert "`torch/__init__.py` of the installed package `torch` was changed after its installation" in edited.err
        first.build(*shared.options, write_program(first, "after", size=34))
    finally:
        shared.kill()
        executor.start()
    assert list(tmp.iterdir()) == []


def test_an_executor_without_the_interpreter_says_what_to_do(
    executor: BuildBox, built: Result, first: Workspace
) -> None:
    failed = first.build(*executor.options, "--//toolchain:python=/opt/python/bin/python3.11", MLP, expect=1)
    assert "There is no /opt/python/bin/python3.11 on this machine" in failed.err
    assert "--@rules_executorch//toolchain:python=PATH" in failed.err
