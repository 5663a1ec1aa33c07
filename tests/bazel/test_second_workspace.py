"""The rules in another workspace, as users have them: examples/monorepo uses them as an external repository."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.helpers.workspaces import REPOSITORY, WORKERS, Workspace

from .conftest import LATER

PROGRAMS = ["apps/fitness/fitness", "apps/gesture/gesture"]


@pytest.fixture(scope="module")
def monorepo(checkout: Workspace, output_root: Path, packages: Path) -> Iterator[Workspace]:
    workspace = Workspace(checkout.directory / "examples/monorepo", output_root, packages)
    workspace.build("//...", *WORKERS)
    yield workspace
    workspace.stop()


def test_programs_of_a_monorepo_share_code_and_weights(monorepo: Workspace) -> None:
    fitness, gesture = (monorepo.output(f"{program}.encoder.ptd").read_bytes() for program in PROGRAMS)
    assert fitness == gesture


def test_the_bytes_of_each_team_are_added_up(monorepo: Workspace) -> None:
    """The encoder's weights count once in all."""
    report = json.loads(monorepo.output("sizes.json").read_text("utf-8"))
    own = [monorepo.output(f"{program}.pte").stat().st_size for program in PROGRAMS]
    encoder = monorepo.output(f"{PROGRAMS[0]}.encoder.ptd").stat().st_size
    assert report == {
        "folders": {
            f"apps/{name}": {"programs": 1, "bytes": size + encoder, "shared_bytes": encoder}
            for name, size in zip(("fitness", "gesture"), own, strict=True)
        },
        "programs": 2,
        "bytes": sum(own) + encoder,
    }
    assert monorepo.output("sizes.txt").read_text("utf-8").startswith("folder ")


def test_the_flag_for_one_configuration_is_in_the_repository_of_the_rules(monorepo: Workspace) -> None:
    flag, actions = "--@rules_executorch//toolchain:one_configuration", 'mnemonic("Executorch.*", //apps/gesture)'
    keys = [
        re.findall(r"ActionKey: (\w+)", monorepo.run("aquery", actions, flag, mode).out)
        for mode in ("--compilation_mode=fastbuild", "--compilation_mode=opt")
    ]
    assert keys[0] == keys[1] != []


def test_the_module_that_the_registry_builds(checkout: Workspace, bazel7: Callable[..., Path]) -> None:
    """Here with what Bazel 8 and 9 switch on. Its packages are those of all tests, so that no Python is downloaded."""
    presubmit = (REPOSITORY / ".bcr/presubmit.yml").read_text("utf-8")
    [place] = re.findall(r"^  module_path: (\S+)$", presubmit, re.MULTILINE)
    made = bazel7(checkout.directory / place, "build", "//...", *LATER)
    [printed] = re.findall(r"out/net\.pte +5\.4 kB +(\w+)", (REPOSITORY / "README.md").read_text("utf-8"))
    assert sha256((made / "net.pte").read_bytes()).hexdigest().startswith(printed)


def test_bazel_7_makes_the_same_bytes(monorepo: Workspace, bazel7: Callable[..., Path]) -> None:
    made = bazel7(monorepo.directory, "build", "//apps/gesture")
    for name in ("gesture.pte", "gesture.encoder.ptd", "gesture.index.json"):
        assert (made / "apps/gesture" / name).read_bytes() == monorepo.output(f"apps/gesture/{name}").read_bytes(), name


def test_bazel_7_builds_in_the_rules_own_repository(
    checkout: Workspace, disk_cache: Path, bazel7: Callable[..., Path]
) -> None:
    checkout.build("//examples/mlp", f"--disk_cache={disk_cache}")
    made = bazel7(checkout.directory, "build", "//examples/mlp:mlp.pte")
    assert (made / "examples/mlp/mlp.pte").read_bytes() == checkout.output("examples/mlp/mlp.pte").read_bytes()
    assert (made / "examples/mlp/mlp.comparison.json").exists()  # who builds a file has it checked too


def test_bazel_7_has_the_flags_of_later_versions(
    monorepo: Workspace, checkout: Workspace, bazel7: Callable[..., Path]
) -> None:
    for directory, targets in ((monorepo.directory, "//..."), (checkout.directory, "//examples/mlp/...")):
        bazel7(directory, "build", targets, "--nobuild", *LATER)


def test_a_lockfile_of_another_repository_is_checked_and_written(monorepo: Workspace) -> None:
    lock = monorepo.directory / "apps/gesture/gesture.lock.json"
    text = lock.read_text("utf-8")
    monorepo.run("test", "//apps/gesture:update_test")
    lock.unlink()
    monorepo.run("run", "//apps/gesture:update")
    assert lock.read_text("utf-8") == text


def test_no_lockfile_is_written_for_another_repository(monorepo: Workspace) -> None:
    """Its package may have the path of one of this workspace."""
    update = "@rules_executorch//examples/mlp:update"
    said = monorepo.run("run", update, expect=1).err
    assert "examples/mlp/mlp.lock.json belongs to the repository rules_executorch" in said
    assert "Run `bazel run //examples/mlp:update` in the workspace of that repository." in said
    assert not (monorepo.directory / "examples").exists()


@pytest.mark.long
def test_bazel_7_checks_and_writes_lockfiles(monorepo: Workspace, bazel7: Callable[..., Path]) -> None:
    lock = monorepo.directory / "apps/gesture/gesture.lock.json"
    text = lock.read_text("utf-8")
    bazel7(monorepo.directory, "test", "//apps/gesture:update_test")
    lock.unlink()
    bazel7(monorepo.directory, "run", "//apps/gesture:update")
    assert lock.read_text("utf-8") == text
