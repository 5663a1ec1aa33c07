"""executorch_selected_ops writes what `etbuild selected-ops` writes, and a missing kernel fails the build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild.cli import main
from tests.helpers.workspaces import Workspace

LABEL = "//examples/kernels"
VISIBLE = "--nocheck_visibility"  # the programs of the examples are private
BUILD = """\
load("//rules:defs.bzl", "executorch_kernels_test", "executorch_selected_ops")

executorch_selected_ops(
    name = "selected_operators",
    programs = ["//examples/tiny_lm", "//examples/mlp"],
)

executorch_selected_ops(
    name = "without_embedding",
    kernels = ["functions.yaml"],
    programs = ["//examples/tiny_lm"],
)

executorch_kernels_test(
    name = "runtime_test",
    programs = ["//examples/tiny_lm"],
    runtime = True,
)

executorch_kernels_test(
    name = "functions_test",
    kernels = ["functions.yaml"],
    programs = ["//examples/tiny_lm"],
)
"""


@pytest.fixture(scope="module")
def kernels(checkout: Workspace, disk_cache: Path) -> Iterator[Workspace]:
    """The programs are built."""
    checkout.write("examples/kernels/BUILD", BUILD)
    checkout.write("examples/kernels/functions.yaml", "- op: add.Scalar_out\n")
    checkout.build(f"{LABEL}:selected_operators", VISIBLE, f"--disk_cache={disk_cache}")
    yield checkout
    for name in ("BUILD", "functions.yaml"):
        (checkout.directory / "examples/kernels" / name).unlink()


def test_the_rule_writes_what_the_command_line_writes(kernels: Workspace, tmp_path: Path) -> None:
    programs = [str(kernels.output(f"examples/{name}/{name}.pte")) for name in ("tiny_lm", "mlp")]
    assert main.main(["selected-ops", *programs, "-o", str(tmp_path / "selection.yaml")]) == 0
    made = kernels.output("examples/kernels/selected_operators.yaml").read_bytes()
    assert made == (tmp_path / "selection.yaml").read_bytes()


def test_a_missing_kernel_fails_the_build(kernels: Workspace) -> None:
    names_the_kernel(kernels.build(f"{LABEL}:without_embedding", VISIBLE, expect=1).err)


def test_a_missing_kernel_fails_the_test(kernels: Workspace) -> None:
    """The test itself looks: the target builds, and another test passes in the same run."""
    targets = [f"{LABEL}:{name}" for name in ("functions_test", "runtime_test")]
    result = kernels.run("test", VISIBLE, *targets, "--test_output=errors", expect=3)
    names_the_kernel(result.out)
    assert "1 test passes and 1 fails" in " ".join(result.out.split()) or "1 fails locally" in result.out


def names_the_kernel(said: str) -> None:
    assert " kernels that the programs need are missing\n" in said
    assert "`aten::embedding.out` (tiny_lm.pte: decode, prefill) at model.py:" in said
    assert "Traceback" not in said
