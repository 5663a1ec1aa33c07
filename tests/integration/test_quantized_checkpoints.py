"""torchao's quantization of checkpoints: a new one exports and lowers nothing, and quantizes what it changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 64)
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64, bias=False))
        self.head = torch.nn.Linear(64, 32)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(1))

    def text(self, tokens):
        return self.head(self.body(self.embedding(tokens)) * self.scale)

    def features(self, x):
        return self.body(x)

def create():
    torch.manual_seed(0)
    return Net().eval()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: net.safetensors}
defaults:
  partitioners: [xnnpack]
  quantize:
    torchao:
      - {config: 8da4w, group_size: 32, modules: ["body.*"], scales: SCALES}
      - {config: int8, layers: [embedding]}
methods:
  text: {example_inputs: [{shape: [1, 4], dtype: int64, fill: 3}]}
  features:
    example_inputs: [{shape: [1, 64]}]
    quantize: {torchao: [{config: 8da8w}]}
checks: {finite: false}
"""


def tensors(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    shapes = {"embedding.weight": (32, 64), "body.0.weight": (64, 64), "body.0.bias": (64,), "body.2.weight": (64, 64)}
    shapes |= {"head.bias": (32,), "scale": (1,)}
    return {name: torch.randn(shape) * 0.1 for name, shape in shapes.items()}


Build = Callable[..., dict[str, Any]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest, its model and a checkpoint. It is the current directory."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.yaml").write_text(MANIFEST.replace("SCALES", "affine"))
    save_file(tensors(0), tmp_path / "net.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def build(project: Path, capfd: pytest.CaptureFixture[str]) -> Build:
    """Builds with options, and returns what `--json` prints."""

    def run(*options: str) -> dict[str, Any]:
        capfd.readouterr()
        code = main.main(["build", "net.yaml", "--json", "--cache-dir", "cache", "-o", "out", *options])
        out, err = capfd.readouterr()
        assert code == 0, err
        (project / "said").write_text(err)
        return dict(json.loads(out))

    return run


def quantized_by_the_export(project: Path, build: Build) -> bytes:
    """The program if the export reads the weights and quantizes them: it does so if a checkpoint may lack some."""
    text = (project / "net.yaml").read_text()
    whole = text.replace("weights: net.safetensors", "weights: {file: net.safetensors, optional: [scale]}")
    (project / "net.yaml").write_text(whole)
    build("--cache-dir", "other")
    (project / "net.yaml").write_text(text)
    return (project / "out/net.pte").read_bytes()


def zeros_and_equal_layers() -> dict[str, torch.Tensor]:
    made = tensors(2)
    return {**made, "body.0.weight": torch.zeros(64, 64), "body.2.weight": torch.zeros(64, 64)}


def test_a_new_checkpoint_quantizes_and_binds(project: Path, build: Build) -> None:
    """The methods quantize one weight in two ways, and the embedding is tied to a layer that is not quantized."""
    assert build()["steps"]["export"] == "run"
    assert (project / "out/net.pte").read_bytes() == quantized_by_the_export(project, build)
    for content in (tensors(1), zeros_and_equal_layers()):
        save_file(content, project / "net.safetensors")
        said = build()
        assert (said["steps"]["export"], set(said["methods"].values())) == ("cached", {"cached"})
        assert (project / "out/net.pte").read_bytes() == quantized_by_the_export(project, build)
    build("--no-accelerate")
    assert (project / "out/net.pte").read_bytes() == quantized_by_the_export(project, build)


def test_hqq_quantizes_only_the_weights_that_changed(project: Path, build: Build) -> None:
    (project / "net.yaml").write_text(MANIFEST.replace("SCALES", "hqq_scale_only"))
    build()
    quantized = cache_upkeep.info(Cache(project / "cache")).records["quantized"]
    assert quantized == 2
    save_file({**tensors(0), "body.2.weight": tensors(1)["body.2.weight"]}, project / "net.safetensors")
    build()
    assert cache_upkeep.info(Cache(project / "cache")).records["quantized"] == quantized + 1
    assert (project / "out/net.pte").read_bytes() == quantized_by_the_export(project, build)


def test_a_weight_that_is_in_no_file_is_quantized_by_the_export(project: Path, build: Build) -> None:
    """A module may keep a parameter out of its state dict."""
    made = "    made = Net().eval()\n    made._register_state_dict_hook(hide)\n    return made\n"
    hide = "\ndef hide(module, state, prefix, metadata):\n    state.pop('body.2.weight', None)\n"
    (project / "model.py").write_text(MODEL.replace("    return Net().eval()\n", made) + hide)
    save_file({name: each for name, each in tensors(0).items() if name != "body.2.weight"}, "net.safetensors")
    build()
    assert "`body.2.weight` is quantized, and is not in the weights files" in (project / "said").read_text()
