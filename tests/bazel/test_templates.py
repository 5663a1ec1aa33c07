"""A new checkpoint on a machine that has built nothing, but has a cache: methods are not lowered again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.workspaces import WORKERS, Workspace, by_command_line, executed

BUILD = """\
load("//rules:defs.bzl", "executorch_program")

[
    executorch_program(
        name = name,
        srcs = ["model.py"],
        manifest = name + ".yaml",
        methods = methods,
        weights = ["net.safetensors"],
    )
    for name, methods in [("one", []), ("two", ["counted", "forward"]), ("passed", []), ("int8", [])]
]
"""
MODEL = """\
import torch
from executorch.exir.pass_base import ExportPass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        return self.linear(x).relu()

    def counted(self, x):
        self.calls += 1
        return self.linear(x) * self.calls

def create():
    return Net()

def passes(method, program):
    assert all(each.abs().sum() > 0 for name, each in program.state_dict.items() if "weight" in name)
    return [ExportPass()]
"""
HEAD = """\
schema: executorch-model/v1
model: {factory: "model:create", weights: net.safetensors}
defaults: {partitioners: [xnnpack]}
"""
FORWARD = "methods:\n  forward: {example_inputs: [{shape: [1, 8]}]}\n"
MANIFESTS = {
    "one": FORWARD,
    # It writes to a buffer whose first value is in the checkpoint, so that it is lowered with it.
    "two": FORWARD + "  counted: {example_inputs: [{shape: [1, 8]}]}\n",
    "int8": FORWARD.replace("}]}", "}], quantize: {torchao: [{config: 8da8w}]}}"),
    "passed": FORWARD + 'passes: {edge: ["model:passes"]}\n',
}
STEPS = {name: f"Executorch{name}" for name in ("Plan", "Export", "Lower", "Compare", "Report")}
Ran = tuple[Counter[str], Counter[str]]


def write(workspace: Workspace, seed: int) -> Path:
    """Writes the package with a checkpoint. Returns its directory."""
    for name, text in {"BUILD": BUILD, "model.py": MODEL}.items():
        workspace.write(f"templates/{name}", text)
    for name, text in MANIFESTS.items():
        workspace.write(f"templates/{name}.yaml", f"name: {name}\n{HEAD}{text}")
    torch.manual_seed(seed)
    shapes = {"linear.weight": (8, 8), "linear.bias": (8,), "calls": (1,)}
    directory = workspace.directory / "templates"
    save_file({name: torch.rand(shape) + 0.5 for name, shape in shapes.items()}, directory / "net.safetensors")
    return directory


@pytest.fixture(params=["4", "7"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Workspace], tuple[Path, Ran]]:
    """Builds the package with a Bazel and a disk cache. Returns the directory of outputs, what ran, and what the cache
    had."""
    options = (f"--disk_cache={tmp_path / 'cache'}", *WORKERS)

    def run(workspace: Workspace) -> tuple[Path, Ran]:
        if request.param == "4":
            result = workspace.build("//templates:all", *options)
            return workspace.output("templates"), (Counter(result.mnemonics), Counter(result.hits))
        log = tmp_path / "log.json"
        bazel7 = request.getfixturevalue("bazel7")
        made = bazel7(workspace.directory, "build", "//templates:all", *options, f"--execution_log_json_file={log}")
        ours = [Counter(name for name in names if name in STEPS.values()) for names in executed(log)]
        return made / "templates", (ours[0], ours[1])

    return run


@pytest.mark.long
def test_another_machine_binds_a_new_checkpoint(
    checkout: Workspace, other_checkout: Workspace, build: Callable[[Workspace], tuple[Path, Ran]], tmp_path: Path
) -> None:
    plan, export, lower, compare, report = STEPS.values()
    write(checkout, 1)
    first, (ran, _) = build(checkout)
    before = {name: (first / f"{name}.pte").read_bytes() for name in MANIFESTS}
    templates = 1 + 2 + 1 + 1  # of `one`, of each method of `two`, of `int8`, and of `passed`: nothing is lowered yet
    assert ran == {plan: 4, export: 4, lower: templates + 4, compare: 4, report: 4}
    directory = write(other_checkout, 2)
    second, (ran, hits) = build(other_checkout)
    assert ran == {lower: 4, compare: 4, report: 4}
    assert hits == {plan: 4, export: 4, lower: templates}
    for name, others in before.items():
        made = (second / f"{name}.pte").read_bytes()
        assert made != others
        assert made == by_command_line(directory, name, tmp_path / "out")
