"""Methods from different modules of one factory, which share a submodule."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime
from safetensors.torch import save

from .conftest import Build, Outcome

MODEL = """\
import torch

class Classifier(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.backbone(x).relu())

class Embedder(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.body = backbone

    def embed(self, x):
        return self.body(x).tanh()

def create(kind="dict"):
    backbone = torch.nn.Linear(64, 64)
    modules = {"classifier": Classifier(backbone), "embedder": Embedder(backbone)}
    if kind == "other":
        modules["number"] = 3
    if kind == "name":
        modules["training"] = Embedder(backbone)
    return torch.nn.ModuleDict(modules) if kind == "ModuleDict" else modules
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", kwargs: {kind: KIND}, weights: net.safetensors}
methods:
  classify: {entry: classifier, example_inputs: [{shape: [2, 64]}]}
  embed: {entry: embedder.embed, example_inputs: [{shape: [2, 64]}]}
defaults: {partitioners: [PARTITIONER]}
"""
BACKBONE_BYTES = 64 * 64 * 4


def eager(built: Outcome) -> Any:
    spec = importlib.util.spec_from_file_location("eager_model", built.directory.parent / "model.py")
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    return source.create("ModuleDict").eval()


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "classifier.backbone.weight": (64, 64),
        "classifier.backbone.bias": (64,),
        "classifier.head.weight": (3, 64),
        "classifier.head.bias": (3,),
    }
    return {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}


def manifest(kind: str = "dict", partitioner: str = "xnnpack", more: str = "") -> str:
    return MANIFEST.replace("KIND", kind).replace("PARTITIONER", partitioner) + more


@pytest.mark.parametrize("named_data", ["", 'named_data: {weights: {parameters: ["*"]}}'])
@pytest.mark.parametrize("partitioner", ["xnnpack", "portable"])
def test_what_modules_share_is_in_the_artifact_once(
    build: Build, weights: dict[str, torch.Tensor], partitioner: str, named_data: str
) -> None:
    made = build(
        manifest(partitioner=partitioner, more=named_data), model=MODEL, files={"net.safetensors": save(weights)}
    )
    assert made.code == 0, made.err
    held = [name for name in made.files if name.endswith((".pte", ".ptd"))]
    assert BACKBONE_BYTES < sum(len(made.read(name)) for name in held) < 2 * BACKBONE_BYTES
    modules = eager(made)
    state = {
        **weights,
        **{f"embedder.body.{part}": weights[f"classifier.backbone.{part}"] for part in ("weight", "bias")},
    }
    modules.load_state_dict(state)
    data = made.directory / "net.weights.ptd" if named_data else None
    program = Runtime.get().load_program(made.directory / "net.pte", data_path=data)
    x = torch.randn(2, 64)
    for method, module in (("classify", modules["classifier"]), ("embed", modules["embedder"].embed)):
        found = program.load_method(method).execute([x])[0]
        torch.testing.assert_close(found, module(x))


def test_a_module_dict_gives_the_same(build: Build, weights: dict[str, torch.Tensor]) -> None:
    made = [
        build(manifest(kind), model=MODEL, files={"net.safetensors": save(weights)}) for kind in ("dict", "ModuleDict")
    ]
    assert made[0].read("net.pte") == made[1].read("net.pte")


WITH_STATE = """\
import torch

class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4), persistent=False)
        self.linear = torch.nn.Linear(4, 4)
        torch.nn.init.eye_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

class Writer(torch.nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        self.cell.cache.add_(x)
        return self.cell.linear(self.cell.cache)

class Reader(torch.nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.inner = cell

    def forward(self, x):
        return self.inner.linear(x) + self.inner.cache

class Twice(torch.nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.first, self.second = Writer(cell), Reader(cell)

    def forward(self, x):
        return self.first(x), self.second(x)

def create():
    cell = Cell()
    return {"write": Writer(cell), "read": Reader(cell), "twice": Twice(cell)}
"""


def test_what_one_module_writes_another_reads(build: Build) -> None:
    text = """\
    schema: executorch-model/v1
    name: net
    model: {factory: "model:create"}
    methods:
      write: {example_inputs: [{shape: [4]}], entry: write, partitioners: [xnnpack]}
      read: {example_inputs: [{shape: [4]}], entry: read, strict: true}
      twice:
        example_inputs: [{shape: [4]}]
        entry: twice
        quantize: {pt2e: {quantizers: [xnnpack], calibration: {factory: "model:samples"}}}
    share_mutable_buffers: true
    named_data: {weights: {parameters: ["*"]}}
    checks: {compare: {leave_out: a quantized method writes to what the others read}}
    """
    samples = "\ndef samples():\n    return [(torch.tensor([1.0, 0.9, 0.5, x]),) for x in (0.25, 0.5, 0.75, 1.0)]\n"
    made = build(text, model=WITH_STATE + samples)
    assert made.code == 0, made.err
    program = Runtime.get().load_program(made.directory / "net.pte", data_path=made.directory / "net.weights.ptd")
    methods: Any = {name: program.load_method(name) for name in ("write", "read", "twice")}
    x = torch.ones(4)
    assert methods["write"].execute([x])[0].tolist() == [1] * 4
    assert methods["read"].execute([x])[0].tolist() == [2] * 4
    torch.testing.assert_close(methods["twice"].execute([x]), [2 * x, 3 * x], atol=0.05, rtol=0)
    torch.testing.assert_close(methods["read"].execute([x])[0], 3 * x, atol=0.05, rtol=0)


def test_an_exported_program_may_write_to_what_two_modules_share(build: Build) -> None:
    names: dict[str, Any] = {}
    exec(WITH_STATE, names)
    saved = io.BytesIO()
    torch.export.save(torch.export.export(names["create"]()["twice"], (torch.ones(4),)), saved)
    text = "schema: executorch-model/v1\nname: net\nmethods: {twice: {program: twice.pt2}}\n"
    made = build(text, files={"twice.pt2": saved.getvalue()})
    assert made.code == 0, made.err
    method: Any = Runtime.get().load_program(made.directory / "net.pte").load_method("twice")
    for expected in ([[1] * 4, [2] * 4], [[2] * 4, [3] * 4]):
        assert [value.tolist() for value in method.execute([torch.ones(4)])] == expected


class Writing(torch.nn.Module):
    """Writes to a view of its first input and to a buffer, and returns the input too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.view(-1)[1:].add_(y.sum())
        self.seen.add_(x)
        return self.seen * 2, x, y


def test_an_exported_program_that_writes_to_an_input_returns_what_its_module_does(build: Build) -> None:
    inputs = torch.ones(2, 3), torch.ones(2)
    files = {}
    for name in ("written", "functional"):
        program = torch.export.export(Writing(), inputs)
        saved = io.BytesIO()
        torch.export.save(program.run_decompositions() if name == "functional" else program, saved)
        files[f"{name}.pt2"] = saved.getvalue()
    text = "schema: executorch-model/v1\nname: net\nmethods: {" + ", ".join(
        f"{Path(file).stem}: {{program: {file}}}" for file in files
    )
    made = build(text + "}\n", files=files)
    assert made.code == 0, made.err
    for file in files:
        name = Path(file).stem
        loaded = Runtime.get().load_program(made.directory / "net.pte")
        assert f"note: `{name}` writes to its input `x`" in made.err
        module, method = Writing(), loaded.load_method(name)
        assert method is not None
        for _ in range(2):
            expected = module(inputs[0].clone(), inputs[1])
            torch.testing.assert_close(tuple(method.execute(inputs)), expected)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("other", "returned a dict with int at `number`"), ("name", "returned a dict with the key `training`")],
)
def test_values_that_are_not_modules_are_errors(build: Build, kind: str, message: str) -> None:
    made = build(manifest(kind), model=MODEL, files={"net.safetensors": save({"x": torch.zeros(1)})})
    assert made.code == 1
    assert f"model.factory: `model:create` {message}" in made.err


QUANTIZED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, 4)

    def forward(self, x):
        return self.linear(x)

def create():
    return {"odd": Net(33), "even": Net(64)}
"""


def test_a_method_is_quantized_beside_a_module_that_cannot_be(build: Build) -> None:
    quantize = {"torchao": [{"config": "8da4w", "group_size": 32}]}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"factory": "model:create"},
        "methods": {
            "odd": {"entry": "odd", "example_inputs": [{"shape": [2, 33]}]},
            "even": {"entry": "even", "example_inputs": [{"shape": [2, 64]}], "quantize": quantize},
        },
        "defaults": {"partitioners": ["xnnpack"]},
    }
    built = build(json.dumps(manifest), model=QUANTIZED)
    assert built.code == 0, built.err
    manifest["methods"]["odd"]["quantize"] = quantize  # type: ignore[index]
    refused = build(json.dumps(manifest), model=QUANTIZED)
    assert refused.code == 2
    assert "`odd.linear` has rows of 33 weights, which is not a multiple of 32" in refused.err
