"""`executorch_checkpoints`: one lowering for all checkpoints of a manifest, and a program for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.workspaces import STEPS, WORKERS, Workspace, by_command_line, executed

BUILD = """\
load("//rules:defs.bzl", "executorch_checkpoints")

executorch_checkpoints(
    name = "net",
    srcs = ["model.py"],
    checkpoint_as = "net.safetensors",
    checkpoints = glob(["step_*.safetensors"]),
    manifest = "net.yaml",
    methods = ["encode", "forward"],
    named_data = ["head"],
)
"""
MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def encode(self, x):
        return self.body(x).relu()

    def forward(self, x):
        return self.head(self.encode(x))

def create():
    return Net()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: net.safetensors}
defaults: {partitioners: [xnnpack]}
methods:
  encode: {example_inputs: [{shape: [1, 8]}]}
  forward: {example_inputs: [{shape: [1, 8]}]}
named_data: {head: {parameters: ["head.*"]}}
"""
SHAPES = {"body.weight": (8, 8), "body.bias": (8,), "head.weight": (4, 8), "head.bias": (4,)}
PLAN, EXPORT, LOWER, COMPARE, REPORT = MNEMONICS = [f"Executorch{step}" for step in STEPS]
OF_A_CHECKPOINT = Counter([PLAN, LOWER, COMPARE, REPORT])


def save(workspace: Workspace, step: int, *without: str) -> Path:
    """Writes a checkpoint. Returns its file."""
    torch.manual_seed(step)
    tensors = {name: torch.rand(shape) for name, shape in SHAPES.items()}
    file = workspace.directory / f"many/step_{step}.safetensors"
    save_file({name: each for name, each in tensors.items() if name not in without}, file)
    return file


@pytest.fixture
def many(checkout: Workspace) -> Iterator[Workspace]:
    """A package `many` with three checkpoints."""
    for name, text in {"BUILD": BUILD, "model.py": MODEL, "net.yaml": MANIFEST}.items():
        checkout.write(f"many/{name}", text)
    for step in range(3):
        save(checkout, step)
    yield checkout
    for path in (checkout.directory / "many").iterdir():
        path.unlink()


Build = Callable[..., tuple[Path, Counter[str]]]


@pytest.fixture(params=["4", "7"])
def build(request: pytest.FixtureRequest, many: Workspace, tmp_path: Path) -> Build:
    """Builds targets of the package with a Bazel and a disk cache. Returns the directory of outputs, and what ran."""
    options = (f"--disk_cache={tmp_path / 'cache'}", *WORKERS)

    def run(target: str) -> tuple[Path, Counter[str]]:
        if request.param == "4":
            ran = many.build(target, *options).mnemonics
            return many.output("many"), Counter(ran)
        log = tmp_path / "log.json"
        log.unlink(missing_ok=True)
        bazel7 = request.getfixturevalue("bazel7")
        made = bazel7(many.directory, "build", target, *options, f"--execution_log_json_file={log}")
        return made / "many", Counter(name for name in executed(log)[0] if name in MNEMONICS)

    return run


@pytest.mark.long
def test_checkpoints_share_what_needs_no_weights(many: Workspace, build: Build, tmp_path: Path) -> None:
    made, ran = build("//many:net")
    shared = Counter({PLAN: 1, EXPORT: 1, LOWER: 2})  # each method once
    assert ran == shared + Counter({step: 3 * count for step, count in OF_A_CHECKPOINT.items()})
    names = ("net.step_0", "net.step_1", "net.step_2")
    assert len({(made / f"{name}.pte").read_bytes() for name in names}) == 3
    assert len({(made / f"{name}.head.ptd").read_bytes() for name in names}) == 3
    assert [json.loads((made / f"{name}.report.json").read_text())["name"] for name in names] == list(names)

    fourth = save(many, 3)
    made, ran = build("//many:net")
    assert ran == OF_A_CHECKPOINT
    (many.directory / "many/net.safetensors").write_bytes(fourth.read_bytes())
    out = tmp_path / "out"
    assert (made / "net.step_3.pte").read_bytes() == by_command_line(many.directory / "many", "net", out)
    assert (made / "net.step_3.head.ptd").read_bytes() == (out / "net.head.ptd").read_bytes()


def test_a_wrong_checkpoint_fails_only_its_program(many: Workspace) -> None:
    save(many, 1, "head.bias")
    failed = many.build("//many:net", "--keep_going", *WORKERS, expect=1)
    assert all(many.output(f"many/net.step_{step}.pte").exists() for step in (0, 2))
    (error,) = (line for line in failed.err.splitlines() if line.startswith("ERROR: "))
    assert "Writing the program of //many:net.step_1 failed" in error
    assert "parameter `head.bias` float32[4] is missing in `net.safetensors`" in failed.err


GLOB = 'glob(["step_*.safetensors"])'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(GLOB, f'["best/step_0.safetensors"] + {GLOB}', "would both be called 'step_0'", id="twice"),
        pytest.param(
            '"net.safetensors"', '"other.safetensors"', "the manifest names `net.safetensors`, and", id="other name"
        ),
        pytest.param(GLOB, 'select({"//conditions:default": []})', "write a list", id="select"),
    ],
)
def test_a_mistake_in_the_build_file_is_named(many: Workspace, old: str, new: str, message: str) -> None:
    many.edit("many/BUILD", old, new)
    assert message in many.build("//many:all", *WORKERS, expect=1).err


OTHER = """
load("//rules:defs.bzl", "executorch_program")

executorch_program(
    name = "other",
    srcs = ["model.py"],
    lowered = ":net.template",
    manifest = "other.yaml",
    manifest_name = "net",
    methods = ["encode", "forward"],
    named_data = ["head"],
    weights_as = {"step_0.safetensors": "net.safetensors"},
)
"""


def test_what_is_lowered_in_another_way_is_refused(many: Workspace) -> None:
    many.write("many/BUILD", BUILD + OTHER)
    many.write("many/other.yaml", MANIFEST + "edge_compile: {check_ir_validity: false}\n")
    said = many.build("//many:other", *WORKERS, expect=1).err
    assert "was lowered with other settings, by the target of `lowered`" in said
