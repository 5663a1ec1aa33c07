"""What `etbuild init` writes can be built: of a folder of Hugging Face, and of factories of several kinds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.manifest import validate
from tests.conftest import EXAMPLES

MODEL = """\
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(9, 4), nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, tokens, scale=1.0):
        print("called")
        return self.head(self.rnn(self.words(tokens))[0]) * scale

class Two(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, size, 3), nn.Linear(size, 2)

    def embed(self, image):
        return self.conv(image).mean((2, 3))

    def compare(self, one, other):
        return self.embed(one) - self.embed(other)

    def size(self):
        return self.linear.weight.sum()

class Strange(nn.Module):
    def forward(self, x):
        return x["image"]

class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 3)

class Smaller(Two):
    def __init__(self):
        super().__init__(2)
        self.half()

def several():
    return {"one": nn.Linear(5, 3), "other": nn.Conv1d(3, 4, 3)}

def listed():
    return nn.ModuleDict(several())
"""
HALF = {"shape": [1, 3, 224, 224], "dtype": "float16"}


@pytest.fixture
def started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[Path, str]]:
    """Runs `etbuild init` for a class of MODEL. Returns the manifest's path and what was printed as errors."""
    (tmp_path / "net.py").write_text(MODEL)

    def run(*arguments: str) -> tuple[Path, str]:
        assert main.main(["init", "--factory", *arguments, "-o", str(tmp_path)]) == 0
        captured = capfd.readouterr()
        assert "called" not in captured.out
        return tmp_path / "net.yaml", captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "methods"),
    [
        (["net:Words"], {"forward": [{"shape": [1, 16], "dtype": "int64"}]}),
        (
            ["net:Two", "--kwargs", '{"size": 4}'],
            {"embed": [[1, 3, 224, 224]], "compare": [[1, 3, 224, 224]] * 2, "size": []},
        ),
        (["net:Parts"], {"encoder": [[1, 5]]}),
        (["net:Smaller"], {"embed": [HALF], "compare": [HALF, HALF], "size": []}),
        (["net:several"], {"one": [[1, 5]], "other": [[1, 3, 128]]}),
        (["net:listed"], {"one": [[1, 5]], "other": [[1, 3, 128]]}),
    ],
)
def test_inputs_are_those_that_the_module_takes(
    arguments: list[str], methods: dict[str, list[object]], started: Callable[..., tuple[Path, str]]
) -> None:
    manifest = validate.load(started(*arguments)[0]).data
    wanted = {
        name: [{"shape": each} if isinstance(each, list) else each for each in inputs]
        for name, inputs in methods.items()
    }
    assert {name: method["example_inputs"] for name, method in manifest["methods"].items()} == wanted


def test_a_manifest_without_fitting_inputs_says_so(started: Callable[..., tuple[Path, str]]) -> None:
    path, said = started("net:Strange")
    assert "note: Change `example_inputs`: forward did not take what was tried." in said
    assert path.read_text().startswith("# Change `example_inputs`")


def test_a_factory_that_fails_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    assert main.main(["init", "--factory", "net:Two", "-o", str(tmp_path)]) == 1
    assert "missing 1 required positional argument: 'size'" in capfd.readouterr().err
    assert not (tmp_path / "net.yaml").exists()


def test_from_a_folder_to_a_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    config = json.loads((EXAMPLES / "huggingface/bert.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    shutil.copy(EXAMPLES / "huggingface/bert.safetensors", folder / "model.safetensors")
    assert main.main(["init", "--huggingface", str(folder), "-o", str(tmp_path / "out")]) == 0
    [last] = [line for line in capfd.readouterr().out.splitlines() if line.startswith("next: ")]
    command = last.removeprefix("next: etbuild ").split()
    command[command.index("-o") + 1] = str(tmp_path / "out")
    assert main.main([*command, "--no-cache"]) == 0
    report = json.loads((tmp_path / "out/bert.report.json").read_text())
    assert report["methods"]["forward"]["delegates"].keys() == {"XnnpackBackend"}


TINY = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"num_key_value_heads": 2, "head_dim": 8}
CUSTOM, STATIC = ({"max_length": 64, "max_seq_length": 64, "kind": kind} for kind in ("custom", "static"))


@pytest.mark.parametrize(
    ("kind", "config", "cache"),
    [
        ("Qwen3ForCausalLM", {**TINY, "model_type": "qwen3", "max_position_embeddings": 64}, CUSTOM),
        ("Gemma2ForCausalLM", {**TINY, "model_type": "gemma2", "max_position_embeddings": 64}, STATIC),  # soft caps
        ("GptOssForCausalLM", {**TINY, "model_type": "gpt_oss", "max_position_embeddings": 64}, STATIC),  # sinks
        ("XGLMForCausalLM", {**TINY, "model_type": "xglm", "max_position_embeddings": 64}, STATIC),  # one attention
        # Its number of positions has a name of its own
        (
            "MptForCausalLM",
            {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
            STATIC,
        ),
    ],
)
def test_a_language_model_gets_a_cache_that_it_can_have(
    kind: str, config: dict[str, Any], cache: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind], **config}))
    assert main.main(["init", "--huggingface", str(tmp_path), "-o", str(tmp_path), "--name", "net"]) == 0
    assert not capfd.readouterr().err.replace("note: The folder has no weights: those of the program are random.\n", "")
    assert validate.load(tmp_path / "net.yaml").data["model"]["huggingface"]["cache"] == cache


def test_a_model_that_can_have_no_cache_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "hidden_size": 16, "num_layers": 2}
    config |= {"num_heads": 2, "attention_types": [[["global", "local"], 1]]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main.main(["init", "--huggingface", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "`GPTNeoForCausalLM` counts keys to find the positions of tokens" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
