"""Variants in Bazel: one export for those whose graphs are equal, and a build that says when they are not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.workspaces import WORKERS, Workspace

BUILD = """\
load("//rules:defs.bzl", "executorch_program", "executorch_programs")

executorch_programs(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
    variants = {
        "int4": {"export": None},
        "portable": {},
        "small": {"export": None},
    },
)

config_setting(
    name = "optimized",
    values = {"compilation_mode": "opt"},
)

executorch_program(
    name = "chosen",
    srcs = ["model.py"],
    manifest = "net.yaml",
    parameters = {"name": "chosen", "width": "32"},
    variant = select({":optimized": "portable", "//conditions:default": ""}),
)
"""
MANIFEST = """\
schema: executorch-model/v1
name: {parameter: name}
model: {factory: "model:create", kwargs: {width: {parameter: width}}}
parameters:
  name: {type: string, default: net}
  width: {type: int, default: 96}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, {parameter: width}]}]}}
variants:
  int4: {defaults: {quantize: {torchao: [{config: 8da4w}]}}}
  portable: {defaults: {partitioners: [portable]}}
  small: {parameters: {width: {default: 64}}}
"""
AFTER = [f"Executorch{step}" for step in ("Lower", "Lower", "Compare", "Report")]
MODEL = "import torch\n\ndef create(width):\n    return torch.nn.Sequential(torch.nn.Linear(width, 4))\n"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [f"--disk_cache={tmp_path_factory.mktemp('variants')}", *WORKERS]


@pytest.fixture(scope="module")
def net(checkout: Workspace) -> Iterator[Workspace]:
    """A package `variants` with a program and its variants."""
    for name, text in {"BUILD": BUILD, "net.yaml": MANIFEST, "model.py": MODEL}.items():
        checkout.write(f"variants/{name}", text)
    yield checkout
    for path in (checkout.directory / "variants").iterdir():
        path.unlink()


def plan_of(path: Path) -> dict[str, object]:
    plan: dict[str, object] = json.loads(path.read_text())["inputs"]["plan"]
    return plan


def test_variants_with_equal_graphs_share_one_export(net: Workspace, options: list[str]) -> None:
    targets = ("//variants:net", "//variants:net.portable", "//variants:net.int4", "//variants:net.small")
    ran = Counter(net.build(*targets, *options).mnemonics)
    assert ran == {"ExecutorchPlan": 4, "ExecutorchExport": 3, **Counter(4 * AFTER)}
    for name in ("net", "net.portable", "net.int4", "net.small"):
        assert net.output(f"variants/{name}.pte").exists()
        assert plan_of(net.output(f"variants/{name}.index.json"))["name"] == name
    net.edit("variants/net.yaml", "[portable]", '["xnnpack", "portable"]')
    try:
        ran = Counter(net.build(*targets, *options).mnemonics)
        assert ran == {"ExecutorchPlan": 4, **Counter(AFTER)}
    finally:
        net.edit("variants/net.yaml", '["xnnpack", "portable"]', "[portable]")


def test_select_chooses_a_variant_and_parameters_set_values(net: Workspace, options: list[str]) -> None:
    net.build("//variants:chosen", *options)
    assert plan_of(net.output("variants/chosen.index.json"))["model"]["kwargs"] == {"width": 32}  # type: ignore[index]
    net.build("//variants:chosen", "--compilation_mode=opt", *options)
    labels = net.bazel("query", net.override, 'kind("generated file", //variants:*)').stdout.split()
    assert set(labels) == {f"//variants:net{variant}.pte" for variant in ("", ".int4", ".portable", ".small")}
    plan = plan_of(net.output("variants/chosen.portable.index.json"))
    assert plan["name"] == "chosen.portable"
    assert plan["model"]["kwargs"] == {"width": 32}  # type: ignore[index]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            '"int4": {"export": None}',
            '"int4": {}',
            "net.yaml:10:21: defaults.quantize: the program and the target of `export` would not export",
            id="another export",
        ),
        pytest.param('"portable": {}', '"portabel": {}', "did you mean `portable`?", id="unknown variant"),
        pytest.param('"width": "32"', '"width": "four"', "expected a whole number", id="not a number"),
    ],
)
def test_a_mistake_in_the_build_file_is_named(
    net: Workspace, options: list[str], old: str, new: str, message: str
) -> None:
    net.edit("variants/BUILD", old, new)
    try:
        assert message in net.build("//variants:all", *options, "--keep_going", expect=1).err
    finally:
        net.edit("variants/BUILD", new, old)
