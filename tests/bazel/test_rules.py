"""Tests the examples in the documentation of the rules as a user would copy them, and the libraries of the .bzl
files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.workspaces import Workspace

from ..starlark_files import examples

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {forward: {example_inputs: [{shape: [1, 8]}]}}
"""
# Targets that the examples of the rules define.
TARGETS = {
    "program_plan": 'program_plan(name = "net", manifest = "net.yaml")',
    "programs": 'programs(name = "net", deps = ["//documented/program:mlp"])',
}
PUBLIC = 'package(default_visibility = ["//documented:__subpackages__"])\n\n'
ELSEWHERE = {  # lines of MODULE.bazel and WORKSPACE
    "rules/extensions.bzl",
    "rules/private/huggingface_checkpoint.bzl",
    "rules/repositories.bzl",
}


@pytest.fixture(scope="module")
def documented(checkout: Workspace) -> Iterator[Workspace]:
    """A package for each example, with the files that it names."""
    for path, example in examples().items():
        if path in ELSEWHERE:
            continue
        package = f"documented/{Path(path).stem}"
        for name in re.findall(r'"([\w.]+\.(?:py|yaml|safetensors))"', example):
            checkout.write(f"{package}/{name}", "")
        rule = re.search(r"^(\w+) = rule\(", example, re.MULTILINE)
        if rule:
            checkout.write(f"{package}/example.bzl", example)
            checkout.write(f"{package}/net.yaml", MANIFEST)
            checkout.write(f"{package}/BUILD", f'load(":example.bzl", "{rule[1]}")\n\n{TARGETS[rule[1]]}\n')
        else:
            checkout.write(f"{package}/BUILD", PUBLIC + example)
    yield checkout
    for file in (checkout.directory / "documented").rglob("*"):
        if file.is_file():
            file.unlink()


def test_the_examples_of_the_documentation_are_complete(documented: Workspace) -> None:
    documented.run("build", "--nobuild", "//documented/...")
    packages = {path.parent.name for path in (documented.directory / "documented").rglob("BUILD")}
    assert packages == {
        "actions",
        "benchmark",
        "cc",
        "defs",
        "library",
        "lock",
        "named_data",
        "package",
        "program",
        "programs",
        "providers",
        "push",
        "selected_ops",
        "size_report",
        "test",
        "test_suite",
        "toolchain",
    }


def test_a_rule_of_the_user_declares_one_action(documented: Workspace) -> None:
    assert documented.build("//documented/actions:net").mnemonics == ["ExecutorchPlan"]
    assert documented.output("documented/actions/net.plan.json").read_text().startswith("{")


def test_libraries_of_the_bzl_files(checkout: Workspace) -> None:
    checkout.build("//rules/...")


@pytest.mark.rotates(days=3)
def test_bazel_7_builds_libraries_of_the_bzl_files(checkout: Workspace, bazel7: Callable[..., Path]) -> None:
    bazel7(checkout.directory, "build", "//rules/...")
