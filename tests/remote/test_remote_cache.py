"""Real remote caches: what a second checkout gets from them, what they store, and what happens when they fail."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.helpers.workspaces import WORKERS, Result, Workspace

from .conftest import PROGRAMS, TARGETS, Filled, artifacts
from .servers import CacheServer

WAIT_SECONDS = 120
pytestmark = pytest.mark.long("caches")  # all or none: most of the time is that of the builds which all tests share


def ours(mnemonics: list[str]) -> list[str]:
    """Returns the actions of the rules, sorted."""
    return sorted(name for name in mnemonics if name.startswith("Executorch"))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def remove_results(workspace: Workspace) -> None:
    """Removes what the rules have made. `bazel clean` would also end the workers, which take seconds to start."""
    made = workspace.output("examples/shared_weights")
    for directory in [made, *(path for path in made.rglob("*") if path.is_dir())]:
        directory.chmod(0o755)
    shutil.rmtree(made)


def rebuild(workspace: Workspace, option: str) -> Result:
    """Builds again with only the cache: all other results are removed."""
    remove_results(workspace)
    return workspace.build(option, *WORKERS, *TARGETS)


@contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """Returns a context manager that replaces a file of a store, and restores it at the end."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def flipped(content: bytes) -> bytes:
    """Returns the content with one bit in the middle changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_a_second_checkout_takes_every_action_from_the_cache(filled: Filled, second: Workspace) -> None:
    built = ours([name for result in filled.results for name in result.mnemonics])
    assert built.count("ExecutorchLower") == 2 * len(TARGETS)
    result = second.build(filled.server.option, *TARGETS)
    assert ours(result.mnemonics) == []
    assert ours(result.hits) == built
    assert "remote cache hit" in result.err
    assert artifacts(second) == filled.made


def test_another_checkpoint_in_a_second_checkout_lowers_nothing(filled: Filled, second: Workspace) -> None:
    weights = second.directory / "examples/shared_weights/backbone.safetensors"
    first = weights.read_bytes()
    remove_results(second)
    save_file({name: each + 0.25 for name, each in load_file(weights).items()}, weights)
    try:
        result = second.build(filled.server.option, *WORKERS, *TARGETS)
    finally:
        weights.write_bytes(first)
    bound = ["ExecutorchCompare", "ExecutorchLower", "ExecutorchReport"]
    assert ours(result.mnemonics) == sorted(len(TARGETS) * bound)
    assert ours(result.hits) == sorted(len(TARGETS) * ["ExecutorchExport", "ExecutorchLower", "ExecutorchPlan"])
    assert artifacts(second)["classifier.backbone.ptd"] != filled.made["classifier.backbone.ptd"]


def test_two_programs_store_their_backbone_once(filled: Filled) -> None:
    backbone = filled.made["classifier.backbone.ptd"]
    assert filled.made["embedder.backbone.ptd"] == backbone
    files = [path for path in filled.server.store.rglob("*") if path.is_file()]
    assert [path for path in files if path.read_bytes() == backbone] == [filled.server.blob(sha256(backbone))]
    if filled.server.asks_first:  # over HTTP, Bazel sends each action's outputs, and the second replaces the first
        assert filled.server.uploads(sha256(backbone)) == 1


def test_a_corrupted_blob_is_not_used(filled: Filled, second: Workspace) -> None:
    blob = filled.server.blob(sha256(filled.made["classifier.pte"]))
    with replaced(blob, flipped(blob.read_bytes())):
        result = rebuild(second, filled.server.option)
    assert result.mnemonics.count("ExecutorchLower") == 1
    assert artifacts(second) == filled.made


def test_a_corrupted_result_of_an_action_is_not_used(filled: Filled, second: Workspace) -> None:
    results = filled.server.results_naming(sha256(filled.made["embedder.pte"]))
    assert results  # of the action that makes the program; and of the one that publishes it, on old releases of Bazel
    with ExitStack() as corrupted:
        for stored in results:
            content = stored.read_bytes()
            corrupted.enter_context(replaced(stored, content[: len(content) // 2]))
        result = rebuild(second, filled.server.option)
    assert result.mnemonics.count("ExecutorchLower") == 1
    assert artifacts(second) == filled.made


def test_a_server_killed_in_the_middle_of_a_build(
    server_type: type[CacheServer], filled: Filled, second: Workspace, tmp_path: Path
) -> None:
    server = server_type(tmp_path)
    log = tmp_path / "build.log"
    remove_results(second)
    command = second.command("build", *second.options(tmp_path / "execution.log"), server.option, *WORKERS, TARGETS[0])
    try:
        server.start()
        with log.open("wb") as stream:
            build = subprocess.Popen(command, cwd=second.directory, stdout=stream, stderr=stream)
        until = time.monotonic() + WAIT_SECONDS
        while server.lookups() < 2:  # the plan is made; the next action was looked up, was not found, and is running
            assert build.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)
    finally:
        server.kill()
    assert build.wait() == 0, log.read_text()
    assert "Writing to Remote Cache" in log.read_text(), log.read_text()  # Bazel has noticed that the server is dead
    names = [name for name in filled.made if name.startswith(PROGRAMS[0])]
    assert artifacts(second, names) == {name: filled.made[name] for name in names}


def test_a_server_that_is_not_there(
    server_type: type[CacheServer], filled: Filled, second: Workspace, tmp_path: Path
) -> None:
    # Over gRPC, Bazel first asks for the server's capabilities, and builds without the server only with an option.
    remove_results(second)
    result = second.build(server_type(tmp_path).option, "--remote_local_fallback", *WORKERS, TARGETS[0])
    assert result.mnemonics.count("ExecutorchLower") == 2
    names = [name for name in filled.made if name.startswith(PROGRAMS[0])]
    assert artifacts(second, names) == {name: filled.made[name] for name in names}
