"""The rules from outside, as a user has them: examples/monorepo names them as an external repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..workspaces import Workspace

PROGRAMS = ["apps/fitness/fitness", "apps/gesture/gesture"]


@pytest.fixture(scope="module")
def monorepo(checkout: Workspace, output_root: Path, packages: Path) -> Iterator[Workspace]:
    workspace = Workspace(checkout.directory / "examples/monorepo", output_root, packages)
    workspace.build("//...")
    yield workspace
    workspace.stop()


def test_programs_of_a_monorepo_share_code_and_weights(monorepo: Workspace) -> None:
    fitness, gesture = (monorepo.output(f"{program}.encoder.ptd").read_bytes() for program in PROGRAMS)
    assert fitness == gesture


def test_bazel_7_makes_the_same_bytes(monorepo: Workspace, build_with_bazel7: Callable[..., Path]) -> None:
    made = build_with_bazel7(monorepo.directory, "//apps/gesture")
    for name in ("gesture.pte", "gesture.encoder.ptd", "gesture.index.json"):
        assert (made / "apps/gesture" / name).read_bytes() == monorepo.output(f"apps/gesture/{name}").read_bytes(), name


def test_bazel_7_builds_in_the_rules_own_repository(
    checkout: Workspace, disk_cache: Path, build_with_bazel7: Callable[..., Path]
) -> None:
    checkout.build("//examples/mlp", f"--disk_cache={disk_cache}")
    made = build_with_bazel7(checkout.directory, "//examples/mlp")
    assert (made / "examples/mlp/mlp.pte").read_bytes() == checkout.output("examples/mlp/mlp.pte").read_bytes()
