"""What other rules give to programs and take from them: Python libraries, directories, weights under other names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.workspaces import WORKERS, Workspace

PACKAGE = "consumers"
RULES = """\
def _copied_impl(ctx):
    made = ctx.actions.declare_directory(ctx.label.name)
    arguments = [made.path] + [file.path for file in ctx.files.srcs]
    command = "to=$1; shift; mkdir -p $to && cp -L $@ $to"
    ctx.actions.run_shell(command = command, arguments = arguments, inputs = ctx.files.srcs, outputs = [made])
    return [DefaultInfo(files = depset([made]))]

copied = rule(implementation = _copied_impl, attrs = {"srcs": attr.label_list(allow_files = True)})
"""
BUILD = """\
load("//rules:defs.bzl", "executorch_library", "executorch_lock", "executorch_named_data", "executorch_program")
load("//rules:defs.bzl", "executorch_size_report")
load(":rules.bzl", "copied")

py_library(
    name = "layers",
    srcs = ["libs/__init__.py", "libs/layers.py"],
    data = ["libs/example.npy"],
    imports = ["libs"],
    deps = [":installed"],
)

py_library(
    name = "installed",
    srcs = ["site-packages/numpy/__init__.py", "site-packages/tiny_layers/__init__.py"],
    data = [
        "site-packages/numpy-2.0.dist-info/METADATA",
    ],
)

executorch_library(
    name = "blocks",
    srcs = ["blocks.py"],
    data = ["blocks.txt", "two/model.safetensors"],
    import_root = ".",
    deps = [":layers"],
)

py_test(
    name = "blocks_test",
    srcs = ["blocks_test.py"],
    deps = [":blocks"],
)

sh_test(
    name = "script_test",
    srcs = ["script_test.sh"],
    data = [":net.pte"],
)

copied(
    name = "checkpoint",
    srcs = ["one/model.safetensors"],
)

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
    named_data = ["all"],
    weights = [":checkpoint"],
    deps = [":blocks"],
)

executorch_program(
    name = "tuned",
    srcs = ["model.py"],
    manifest = "net.yaml",
    manifest_name = "net",
    named_data = ["all"],
    weights_as = {"two/model.safetensors": "checkpoint/model.safetensors"},
    deps = [":blocks"],
)

executorch_lock(
    name = "update",
    lock = "the net's lock.json",
    program = ":net",
)

executorch_named_data(
    name = "all",
    program = ":net",
    tag = "all",
)

executorch_size_report(
    name = "sizes",
    deps = [":shipped.pte", ":by_a_tool"],
)

genrule(
    name = "by_a_tool",
    outs = ["by_a_tool.txt"],
    cmd = "touch $@",
    tools = [":tuned"],
)

genrule(
    name = "shipped",
    srcs = [":net.pte", ":net.all.ptd"],
    outs = ["shipped.pte", "shipped.ptd"],
    cmd = "cp $(location :net.pte) $(location shipped.pte); cp $(location :net.all.ptd) $(location shipped.ptd)",
)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: checkpoint}
methods: {forward: {example_inputs: [{file: libs/example.npy}]}}
named_data: {all: {parameters: ["*"]}}
"""
MODEL = """\
import blocks

def create():
    return blocks.Block()
"""
BLOCKS = """\
import torch
import layers

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = layers.linear()

    def forward(self, x):
        return self.linear(x)
"""
LAYERS = """\
import torch

def linear():
    return torch.nn.Linear(4, 2)
"""
IMPORTS = """\
import importlib.util

assert importlib.util.find_spec("blocks") and importlib.util.find_spec("layers")
"""


@pytest.fixture(scope="module")
def package(checkout: Workspace) -> Iterator[Workspace]:
    texts = {
        "rules.bzl": RULES,
        "BUILD": BUILD,
        "net.yaml": MANIFEST,
        "model.py": MODEL,
        "blocks.py": BLOCKS,
        "blocks.txt": "",
        "blocks_test.py": IMPORTS,
        "libs/__init__.py": "",
        "libs/layers.py": LAYERS,
        "other/__init__.py": "",
        "script_test.sh": "#!/bin/sh\n",
        "site-packages/numpy/__init__.py": "raise AssertionError",
        "site-packages/numpy-2.0.dist-info/METADATA": "",
        "site-packages/tiny_layers/__init__.py": "",
    }
    for name, text in texts.items():
        checkout.write(f"{PACKAGE}/{name}", text)
    (checkout.directory / PACKAGE / "script_test.sh").chmod(0o755)
    np.save(checkout.directory / PACKAGE / "libs/example.npy", np.ones((1, 4), np.float32))
    for value, name in enumerate(("one", "two"), start=1):
        file = checkout.directory / PACKAGE / name / "model.safetensors"
        file.parent.mkdir()
        tensors = {"linear.weight": torch.full((2, 4), float(value)), "linear.bias": torch.zeros(2)}
        save_file(tensors, file)
    yield checkout
    for path in (checkout.directory / PACKAGE).rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.fixture(scope="module")
def both(package: Workspace) -> Workspace:
    """Two programs of one manifest."""
    package.build(f"//{PACKAGE}:net", f"//{PACKAGE}:tuned", *WORKERS)
    return package


def wrong(package: Workspace, old: str, new: str) -> str:
    """Makes an edit, builds, and undoes the edit. Returns the messages. No action may have exported."""
    package.edit(f"{PACKAGE}/BUILD", old, new)
    try:
        done = package.build(f"//{PACKAGE}:net", *WORKERS, expect=1)
    finally:
        package.edit(f"{PACKAGE}/BUILD", new, old)
    assert "ExecutorchExport" not in done.mnemonics
    return done.err


def test_a_manifest_is_built_with_two_checkpoints(both: Workspace) -> None:
    """One is a directory that a rule makes; the other has another name and place than in the manifest."""
    net, tuned = (both.output(f"{PACKAGE}/{name}.all.ptd").read_bytes() for name in ("net", "tuned"))
    one, two = (torch.full((8,), value).numpy().tobytes() for value in (1.0, 2.0))
    assert (one in net, two in net, one in tuned, two in tuned) == (True, False, False, True)
    assert both.output(f"{PACKAGE}/tuned.pte").read_bytes() == both.output(f"{PACKAGE}/net.pte").read_bytes()


def test_python_libraries_are_used_and_given(both: Workspace) -> None:
    both.build(f"//{PACKAGE}:blocks_test")
    for name in ("blocks.py", "libs/layers.py"):
        made = both.output(f"{PACKAGE}/blocks_test.runfiles") / "rules_executorch" / PACKAGE / name
        assert made.exists(), made


def test_data_of_libraries_is_among_runfiles(both: Workspace) -> None:
    runfiles = both.output(f"{PACKAGE}/blocks_test.runfiles") / "rules_executorch" / PACKAGE
    both.build(f"//{PACKAGE}:blocks_test")
    assert (runfiles / "blocks.txt").exists()


NUMPY = '"site-packages/numpy-2.0.dist-info/METADATA"'


def test_a_package_without_metadata_is_noted(package: Workspace) -> None:
    """It is known by what is imported, and it may be called otherwise."""
    package.edit(f"{PACKAGE}/BUILD", NUMPY, '"other/__init__.py"')
    try:
        said = package.build(f"//{PACKAGE}:net", "--nobuild").err
    finally:
        package.edit(f"{PACKAGE}/BUILD", '"other/__init__.py",\n    ]', NUMPY + ",\n    ]")
    [note] = [line for line in said.splitlines() if "Python packages" in line]
    assert "that the toolchain does not have: tiny-layers. " in note


def test_a_lockfile_has_a_space_in_its_name(both: Workspace) -> None:
    lock = both.directory / PACKAGE / "the net's lock.json"
    assert (
        f"bazel run //{PACKAGE}:update"
        in both.run("test", f"//{PACKAGE}:update_test", "--test_output=all", expect=3).out
    )
    both.run("run", f"//{PACKAGE}:update")
    assert "net.pte" in lock.read_text("utf-8")
    both.run("test", f"//{PACKAGE}:update_test")
    lock.unlink()


def test_the_files_of_a_program_have_labels(both: Workspace) -> None:
    """A genrule takes two of them. A test has the program among its runfiles, and no other file."""
    both.build(f"//{PACKAGE}:shipped", f"//{PACKAGE}:script_test", *WORKERS)
    for ours, theirs in (("net.pte", "shipped.pte"), ("net.all.ptd", "shipped.ptd")):
        assert both.output(f"{PACKAGE}/{ours}").read_bytes() == both.output(f"{PACKAGE}/{theirs}").read_bytes()
    runfiles = both.output(f"{PACKAGE}/script_test.runfiles") / "rules_executorch" / PACKAGE
    assert {path.name for path in runfiles.iterdir()} == {"net.pte", "script_test", "script_test.sh"}


def test_coverage_finds_the_sources_of_models(both: Workspace) -> None:
    """Also of a program that a test only has among its data."""
    both.run("coverage", f"//{PACKAGE}:script_test", f"--instrumentation_filter=^//{PACKAGE}")
    found = set(both.output(f"{PACKAGE}/script_test.instrumented_files").read_text("utf-8").split())
    assert {f"{PACKAGE}/{name}" for name in ("model.py", "blocks.py", "libs/layers.py")} <= found


def test_a_size_report_finds_the_programs_that_an_app_needs(both: Workspace) -> None:
    """Here the app is a file of a genrule over files of the program. All of the program counts, and no program that
    only a tool needs."""
    both.build(f"//{PACKAGE}:sizes", *WORKERS)
    report = json.loads(both.output(f"{PACKAGE}/sizes.json").read_text("utf-8"))
    shipped = sum(both.output(f"{PACKAGE}/net.{kind}").stat().st_size for kind in ("pte", "all.ptd"))
    assert report["folders"] == {PACKAGE: {"programs": 1, "bytes": shipped, "shared_bytes": 0}}


def test_a_test_of_the_consumer_runs(both: Workspace) -> None:
    """The stubs of repositories that this workspace does not need must not be in the way."""
    both.run("test", f"//{PACKAGE}:script_test")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            'weights = [":checkpoint"]',
            'weights = [":checkpoint", "two/model.safetensors"]',
            "the target lists the weights `two/model.safetensors`, and the manifest does not name them",
            id="weights that nothing names",
        ),
        pytest.param(
            'weights = [":checkpoint"]',
            "weights = []",
            "net.yaml:3:43: model.weights: the target does not list `checkpoint`",
            id="weights that are not listed",
        ),
    ],
)
def test_weights_that_do_not_fit_the_manifest(package: Workspace, old: str, new: str, message: str) -> None:
    said = wrong(package, old, new)
    assert message in said
    assert "list it under `weights` of //" in said or "remove it from the target" in said


def test_a_program_that_fails_a_check_reaches_no_other_rule(both: Workspace) -> None:
    """Bazel 4 runs no validation actions. Nothing here asks for them."""
    both.edit(f"{PACKAGE}/net.yaml", "methods:", "checks: {max_program_bytes: 9}\nmethods:")
    try:
        for target in (f"//{PACKAGE}:shipped", f"//{PACKAGE}:all"):
            assert "checks.max_program_bytes" in both.build(target, *WORKERS, expect=1).err
        for group in ("pte", "named_data", "index", "report", "page", "export"):
            said = both.build(f"//{PACKAGE}:net", f"--output_groups={group}", *WORKERS, expect=1).err
            assert "checks.max_program_bytes" in said, group
    finally:
        both.edit(f"{PACKAGE}/net.yaml", "checks: {max_program_bytes: 9}\nmethods:", "methods:")
