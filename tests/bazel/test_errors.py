"""Error messages for mistakes of users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.workspaces import Workspace

LOAD = 'load("//rules:defs.bzl", "executorch_program")\n'
MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward:
    example_inputs: [{shape: [1, 8]}]
named_data: {weights: {parameters: ["*"]}}
"""
PROGRAM = """
executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
    named_data = ["weights"],
)
"""


@pytest.fixture
def package(checkout: Workspace) -> Iterator[Workspace]:
    """A package `wrong` with one program, which each test breaks."""
    checkout.write("wrong/BUILD", LOAD + PROGRAM)
    checkout.write("wrong/net.yaml", MANIFEST)
    checkout.write("wrong/model.py", MODEL)
    yield checkout
    for path in (checkout.directory / "wrong").iterdir():
        path.unlink()


def errors(workspace: Workspace, target: str = "//wrong:net") -> str:
    return workspace.build(target, expect=1).err


def test_a_manifest_error_has_file_line_and_column(package: Workspace) -> None:
    package.edit("wrong/net.yaml", "methods:", "method:")
    message = errors(package)
    assert "wrong/net.yaml:4:1" in message
    assert "methods" in message


def test_an_error_of_lowering_has_file_line_and_column(package: Workspace) -> None:
    message = errors(package)  # model.py has no `create`
    assert "wrong/net.yaml:3:" in message
    assert "create" in message


def test_an_error_of_lowering_names_the_line_of_the_model(package: Workspace) -> None:
    model = MODEL.replace("return self.linear(x)", "return torch.linalg.eigh(self.linear(x).T @ x)[0]")
    model = model.replace("Linear(8, 4)", "Linear(8, 8)") + "\ndef create():\n    return Net()\n"
    package.write("wrong/model.py", model)
    line = "at model.py:9, in forward: `return torch.linalg.eigh(self.linear(x).T @ x)[0]`"
    assert line in errors(package)
    package.write("wrong/model.py", "# A comment.\n" + model)
    assert line.replace("model.py:9", "model.py:10") in errors(package)  # the export has run again


@pytest.mark.parametrize(
    ("attribute", "wrong"),
    [('named_data = ["weights"]', 'named_data = ["wieghts"]'), ('name = "net"', 'name = "network"'),
     ('manifest = "net.yaml"', 'manifest = "net.yaml", methods = ["generate"]'),
     ('manifest = "net.yaml"', 'manifest = "net.yaml", backends = ["vulkan"]'),
     ('manifest = "net.yaml"', 'manifest = "net.yaml", plugins = ["vulkan"]')],
)  # fmt: skip
def test_a_target_that_contradicts_its_manifest(package: Workspace, attribute: str, wrong: str) -> None:
    package.edit("wrong/BUILD", attribute, wrong)
    message = errors(package, "//wrong:all")
    assert "Planning //wrong:" in message
    assert wrong.split('"')[-2] in message.split("error:", 1)[1], message


def test_an_error_names_the_attribute_and_not_the_option(package: Workspace) -> None:
    package.edit("wrong/BUILD", "    srcs", '    parameters = {"layers": "4"},\n    srcs')
    message = errors(package)
    assert "`parameters` `layers=4`: there is no parameter `layers`" in message
    assert "--set" not in message


def test_a_plugin_that_a_target_does_not_name_is_named(package: Workspace) -> None:
    package.edit("wrong/BUILD", "    srcs", "    plugins = [],\n    srcs")
    package.edit("wrong/net.yaml", "named_data", "defaults: {partitioners: [vulkan]}\nnamed_data")
    message = errors(package)
    assert "wrong/net.yaml:7:" in message
    assert "the program needs the plug-in `vulkan`, and its target does not name it" in message
    assert 'add "vulkan" to `plugins` in the BUILD file (`bazel run ' in message


def test_an_undeclared_source_is_not_found(package: Workspace) -> None:
    package.write("wrong/helper.py", "size = 4\n")
    package.write("wrong/model.py", "import helper\n" + MODEL + "\ndef create():\n    return Net()\n")
    message = errors(package)
    assert "helper" in message
    assert Path(package.directory / "wrong/helper.py").exists()  # it is in the same directory, but not declared


def test_an_action_has_no_network(package: Workspace) -> None:
    package.write(
        "wrong/model.py",
        MODEL
        + """
def create():
    import socket
    names = [name for _, name in socket.if_nameindex()]
    assert names == ["lo"], names
    raise RuntimeError("only the loopback interface")
""",
    )
    assert "only the loopback interface" in errors(package)


def test_an_action_does_not_see_the_users_environment(package: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETBUILD_TEST_AMBIENT", "1")
    package.write(
        "wrong/model.py",
        MODEL
        + """
def create():
    import os
    raise RuntimeError("home " + os.environ["HOME"] + " ambient " + str("ETBUILD_TEST_AMBIENT" in os.environ))
""",
    )
    assert "home /nonexistent ambient False" in errors(package, "//wrong:net")


def test_what_is_missing_names_the_attribute_and_the_target(package: Workspace) -> None:
    package.edit("wrong/BUILD", 'srcs = ["model.py"],\n    ', "")
    message = errors(package)
    assert "the module `model` is not among the declared sources" in message
    assert "to declare it, list it under `srcs` or `deps` of //wrong:net\n" in message
    package.write("wrong/BUILD", LOAD + PROGRAM)
    package.write("wrong/model.py", "import helper\n" + MODEL)
    message = errors(package)
    assert "is `helper` a source of yours?" in message
    assert "to declare it, list it under `srcs` or `deps` of //wrong:net\n" in message


def test_a_hint_names_the_command_of_bazel(package: Workspace) -> None:
    package.edit("wrong/BUILD", 'named_data = ["weights"]', "named_data = []")
    assert "(`bazel run @rules_executorch//:etbuild -- targets` does it)" in errors(package)


def test_a_version_of_python_is_refused_before_the_packages_are_fetched(checkout: Workspace) -> None:
    old = "executorch_repositories(extras"
    new = 'executorch_repositories(python_version = "3.10", extras'
    checkout.edit("WORKSPACE", old, new)
    try:
        done = checkout.bazel("build", "--nobuild", "//toolchain:etbuild")
    finally:
        checkout.edit("WORKSPACE", new, old)
    assert done.returncode != 0
    assert "`python_version` is `3.10`. Supported: 3.13, 3.12, 3.11." in done.stderr
    assert "packages_repository.bzl" not in done.stderr


def test_a_toolchain_that_is_not_there(package: Workspace) -> None:
    """Bazel says it at the target, before anything looks for a toolchain."""
    package.edit("wrong/BUILD", 'named_data = ["weights"]', 'named_data = ["weights"], toolchain = "nope"')
    said = errors(package)
    assert "invalid value in 'toolchain' attribute: has to be one of '' or 'default' instead of 'nope'" in said
    assert "Traceback" not in said


def test_an_extra_that_is_not_there(checkout: Workspace) -> None:
    checkout.edit("WORKSPACE", '"huggingface"', '"hugingface"')
    try:
        done = checkout.bazel("build", "--nobuild", "//toolchain:etbuild")  # without the built packages
    finally:
        checkout.edit("WORKSPACE", '"hugingface"', '"huggingface"')
    assert done.returncode != 0
    assert re.search(
        r"There is no extra `hugingface`. Did you mean `huggingface`\? Known: .*\bhuggingface, openvino", done.stderr
    )
