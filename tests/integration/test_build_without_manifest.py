"""A source is built without a manifest: the inputs are given or found, and the manifest that was used can be kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etbuild.manifest import validate
from tests.helpers import commands

MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, scale):
        return self.layer(x) * scale

def create():
    torch.manual_seed(0)
    return Net()

class Reader(nn.Module):
    def forward(self, x):
        return x["image"]

class Rows(nn.Module):
    def forward(self, x, rows):
        return x[rows]

class Loud(nn.Module):
    def forward(self, x):
        raise ValueError("\\x1b[31m no 224, but 999999")

made = Net

if True:
    def counted():
        assert not hasattr(nn.Linear, "made"), "the code of the model ran before in this process"
        nn.Linear.made = True
        return create()
"""


@pytest.fixture
def built(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs `etbuild build` for MODEL, which is in a package. Returns what was printed as errors."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        assert main.main(["build", *arguments, "--no-cache"]) == code
        return capfd.readouterr().err

    return run


def test_the_manifest_that_was_used_builds_the_same_program(built: Callable[..., str], tmp_path: Path) -> None:
    save_file({"layer.weight": torch.ones(3, 6), "layer.bias": torch.ones(3)}, tmp_path / "pkg/trained.safetensors")
    said = built("pkg/net.py:create", "--input", "2,6", "--input", "scale=float32[3]", "--save", "net.yaml", "-o", "a")
    assert "The weights are those of pkg/trained.safetensors" in said
    data = validate.load(tmp_path / "net.yaml").data
    assert data["model"] == {"factory": "pkg.net:create", "weights": "pkg/trained.safetensors"}
    assert data["methods"] == {"forward": {"example_inputs": [{"shape": [2, 6]}, {"shape": [3]}]}}
    built("net.yaml", "-o", "b")
    (tmp_path / "elsewhere").mkdir()
    given = ["--input", "2,6", "--input", "scale=float32[3]"]
    said = built("pkg/net.py:create", *given, "--save", "elsewhere/net.yaml", "-o", "a")
    assert f"wrote elsewhere/net.yaml; build it with `--root {tmp_path}`" in said
    assert (tmp_path / "a/net.pte").read_bytes() == (tmp_path / "b/net.pte").read_bytes()
    said = built("pkg/net.py:create", "--input", "1,6", "--input", "1", "--save", "net.yaml", code=2)
    assert "error: net.yaml exists, and is not replaced" in said


def test_without_inputs_those_that_fit_are_found(built: Callable[..., str], tmp_path: Path) -> None:
    said = built("pkg/net.py:made", "--backend", "portable", "--save", "net.yaml", "-o", "a")
    assert "These inputs are a guess, without `--input`: forward [{shape: [1, 6]}, {shape: [1, " in said
    assert "wrote net.yaml\n" in said
    assert validate.load(tmp_path / "net.yaml").data["defaults"]["partitioners"] == []
    said = built("pkg/net.py:Reader", code=2)
    assert "`forward` did not take the inputs that were tried. forward: With float32[1, 3, 224, 224], it says" in said
    assert "say `--input`" in said
    said = built("pkg/net.py:Loud", code=2)
    assert "\x1b" not in said
    assert "no 224, but 999999" in said


def test_a_call_that_fails_names_the_operator_and_its_cause(built: Callable[..., str], tmp_path: Path) -> None:
    built("pkg/net.py:Rows", "--input", "3,2", "--input", "int64[5]", "-o", "a")
    # In a process of its own: pytest takes the place of the stream to which the runtime writes.
    done = commands.etbuild("run", tmp_path / "a/net.pte")
    assert done.returncode == 1
    assert "aten::index.Tensor_out: Index 3 out of range for tensor with size 3" in done.stderr
    assert "inputs that are not given count from 0 on" in done.stderr
    given = ("[[0, 1], [2, 3], [4, 5]]", "[2, 0, 1, 2, 0]")
    named, unnamed = (commands.etbuild("run", tmp_path / "a/net.pte", *first, *given) for first in (["forward"], []))
    assert unnamed.returncode == 0, unnamed.stderr
    assert "float32 [5, 2]" in named.stdout
    assert unnamed.stdout == named.stdout


def test_the_code_of_the_model_runs_in_another_process_than_the_build(built: Callable[..., str]) -> None:
    built("pkg/net.py:counted", "--input", "1,6", "--input", "1", "-o", "a")


def test_weights_that_are_not_certain_are_an_error(built: Callable[..., str], tmp_path: Path) -> None:
    state = {"layer.weight": torch.ones(3, 6), "layer.bias": torch.ones(3)}
    save_file({**state, "layer.bias": torch.ones(4)}, tmp_path / "pkg/other.safetensors")
    given = ["pkg/net.py:create", "--input", "1,6", "--input", "1"]
    assert built(*given, code=2).startswith("error: which weights? pkg/other.safetensors does not fit the module: ")
    save_file(state, tmp_path / "pkg/one.safetensors")
    save_file(state, tmp_path / "pkg/two.safetensors")
    assert "error: which weights? Name one of pkg/one.safetensors, pkg/two.safetensors" in built(*given, code=2)


def test_quantization_is_one_word(built: Callable[..., str], tmp_path: Path) -> None:
    given = ["--input", "1,6", "--input", "scale=1"]
    said = built("pkg/net.py:create", *given, "--quantize", "int8", "--save", "net.yaml", "-o", "a")
    assert "The scales of int8 are those of one random input." in said
    quantize = validate.load(tmp_path / "net.yaml").data["defaults"]["quantize"]
    assert quantize == {"pt2e": {"quantizers": ["xnnpack"], "calibration": "example_inputs"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pkg/net.py:creat"], "pkg/net.py has no `creat`\n    did you mean `create`?"),
        (["pkg/nets.py:create"], "pkg/nets.py: No such file or directory"),
        (["pkg/net.py"], "pkg/net.py: is a Python source, not a manifest\n    name what makes the model: "),
        (["pkg/net.py:create", "--input", "1x6"], "--input 1x6: expected sizes, and before them a name and a type"),
        (["pkg/net.py:create", "--input", "1,0"], "--input 1,0: each size is a number from 1 on"),
        (["pkg/net.py:create", "--input", "x=1,6,"], "--input x=1,6,: each size is a number from 1 on"),
        (
            ["pkg/net.py:create", "--input", "float[1]"],
            "--input float[1]: unknown type `float`\n    PyTorch's `float` is",
        ),
        (["pkg/net.py:create", "--input", "int64 1"], "--input int64 1: the sizes need brackets"),
        (["pkg/net.py:create", "--input", "1,6"], "--input 1,6: `forward(x, scale)` does not take these: missing"),
        (["pkg/net.py:create", "--input", "y=1"], "--input y=1: `forward` has no parameter `y`"),
        (["pkg/net.py:create", "--input", "x=1", "--input", "x=2"], "--input x=1 --input x=2: two inputs have the"),
        (["pkg/net.py:create", "--quantize", "int9"], "--quantize int9: unknown\n    did you mean `int8`?"),
        (["pkg/net.py:create", "--input", "1,6", "--input", "1", "--save", "pkg"], "pkg is a directory"),
        (["pkg/net.py:create", "net.yaml"], "pkg/net.py:create: a command builds only one source"),
        (["net.yaml", "--input", "1"], "--input is for a source, such as model.py:create"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, built: Callable[..., str]) -> None:
    assert built(*arguments, code=2).startswith(f"error: {message}")
