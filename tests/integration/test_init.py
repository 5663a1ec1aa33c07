"""What `etbuild init` writes can be built: of a folder of Hugging Face, and of factories of several kinds."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etbuild.emit import runtime_limits
from etbuild.manifest import validate
from etkit.authoring.first_manifest import other_methods, trial
from etkit.authoring.first_manifest.files import Files
from tests.conftest import EXAMPLES
from tests.helpers import commands, packed
from tests.helpers.http_server import Answer, serving
from tests.helpers.language_models import CONFIGS

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

class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 3), nn.Linear(3, 5)

    def forward(self, x):
        return self.decode(self.encode(x))

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)

    def describe(self, x):
        return str(x)

    def save(self):
        open("saved", "w")

    def _hidden(self, x):
        return x

class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x).mean(0)

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(9, 4), nn.Sequential(nn.Linear(17, 8), nn.ReLU(), nn.Linear(8, 4))
        self.cell, self.table = nn.GRUCell(4, 6), nn.Parameter(torch.ones(11, 2))

    def user(self, id):
        return self.users(id)

    def item(self, features):
        return self.items(features)

    def step(self, x, state):
        return self.cell(x, state)

    def looked_up(self, x):
        return x @ self.table

class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(2 * 26 * 26, 3)

    def forward(self, image):
        return self.linear(self.conv(image).flatten(1))

class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, image):
        return self.conv(image).relu().mean((2, 3))

def several():
    return {"one": nn.Linear(5, 3), "other": nn.Conv1d(3, 4, 3)}

def listed():
    return nn.ModuleDict(several())
"""
transformers = pytest.importorskip("transformers")
LONG = pytest.mark.long
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
        (["net:Many"], {"forward": [[1, 16]], "encode": [[1, 16]], "decode": [[1, 3]]}),
        (
            ["net:Towers"],
            {
                "user": [{"shape": [1, 16], "dtype": "int64"}],
                "item": [[1, 17]],
                "step": [[1, 4], [1, 6]],
                "looked_up": [[1, 11]],
            },
        ),
        (["net:Flat"], {"forward": [[1, 1, 28, 28]]}),
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


def test_all_public_methods_and_what_was_guessed_are_said(started: Callable[..., tuple[Path, str]]) -> None:
    path, said = started("net:Many")
    assert "note: Check `example_inputs`: the shapes are a guess that fits forward, encode, decode." in said
    assert "note: Left out: describe, which did not take what was tried, or return no tensors." in said
    assert path.read_text().count("]   # a guess\n") == 3
    assert not [*Path().glob("saved"), *path.parent.glob("saved")]


@pytest.mark.parametrize(
    ("reference", "quantize"), [("net:Many", "torchao: [{config: 8da8w}]"), ("net:Pictures", "pt2e: ")]
)
def test_the_comments_build_and_suit_the_layers(
    reference: str, quantize: str, started: Callable[..., tuple[Path, str]]
) -> None:
    path, _ = started(reference)
    text = path.read_text()
    assert f"# quantize: {{{quantize}" in text
    guessed = [line for line in text.splitlines() if line.endswith("# a guess")]
    for line in guessed:
        text = text.replace(f"{line}\n", "")
    path.write_text(
        text.replace("# quantize:", "quantize:")
        .replace("# example_inputs", "example_inputs")
        .replace("# dynamic", "dynamic")
    )
    methods = validate.load(path).data["methods"]
    assert all(each["dynamic_shapes"][0][0] == {"dim": "batch", "max": 8} for each in methods.values())
    assert main.main(["build", str(path), "-o", str(path.parent / "out"), "--no-cache"]) == 0


def test_a_method_that_mixes_its_examples_gets_no_batch(started: Callable[..., tuple[Path, str]]) -> None:
    path, _ = started("net:Mixing")
    assert "[1, 5]" in path.read_text()
    assert "dynamic_shapes" not in path.read_text()


def test_a_build_file_is_only_for_bazel(started: Callable[..., tuple[Path, str]]) -> None:
    path, _ = started("net:Parts")
    build = path.with_name("BUILD")
    assert not build.exists()
    started("net:Parts", "--name", "asked", "--bazel")
    assert 'name = "asked"' in build.read_text()
    build.unlink()
    path.with_name("MODULE.bazel").touch()
    started("net:Parts", "--name", "inside")
    assert 'name = "inside"' in build.read_text()


def test_weights_beside_the_source_are_taken_if_they_fit(
    started: Callable[..., tuple[Path, str]], tmp_path: Path
) -> None:
    layers = {"encoder": torch.nn.Linear(16, 3), "decoder": torch.nn.Linear(3, 5)}
    state = torch.nn.ModuleDict(layers).state_dict()
    save_file({**state, "decoder.bias": torch.zeros(4)}, tmp_path / "other.safetensors")
    path, said = started("net:Many", "--name", "none")
    assert "note: other.safetensors does not fit the module: parameter `decoder.bias`" in said
    assert "weights" not in validate.load(path.with_name("none.yaml")).data["model"]
    save_file({"x": torch.ones(2, 16)}, tmp_path / "recorded.safetensors")
    save_file(state, tmp_path / "first.safetensors")
    path, said = started("net:Many")
    assert "recorded" not in said
    assert "note: The weights are those of first.safetensors, which fit the module." in said
    assert validate.load(path).data["model"]["weights"] == "first.safetensors"
    assert main.main(["build", str(path), "-o", str(tmp_path / "out"), "--no-cache"]) == 0
    save_file(state, tmp_path / "second.safetensors")
    path, said = started("net:Many", "--name", "two")
    assert "note: Name one of first.safetensors, second.safetensors as `weights` of the model" in said
    assert "weights" not in validate.load(path.with_name("two.yaml")).data["model"]


def test_a_checkpoint_of_torch_save_beside_the_source_is_taken_and_runs_no_code(
    started: Callable[..., tuple[Path, str]], tmp_path: Path
) -> None:
    layers = {"encoder": torch.nn.Linear(16, 3), "decoder": torch.nn.Linear(3, 5)}
    state = torch.nn.ModuleDict(layers).state_dict()
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "trained.pt")
    torch.save({"encoder.weight": Path("x")}, tmp_path / "whole.pt")
    path, said = started("net:Many")
    assert "note: The weights are those of trained.pt, which fit the module." in said
    assert validate.load(path).data["model"]["weights"] == "trained.pt"
    (tmp_path / "trained.pt").unlink()
    _, said = started("net:Many", "--name", "other")
    assert "note: whole.pt does not fit the module: " in said
    assert "needs the code of" in said


def test_a_manifest_without_fitting_inputs_says_so(started: Callable[..., tuple[Path, str]]) -> None:
    path, said = started("net:Strange")
    assert "note: Change `example_inputs`: forward did not take what was tried." in said
    assert "note: forward: With float32[1, 3, 224, 224], it says too many indices for tensor" in said
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


NEO = {
    "architectures": ["GPTNeoForCausalLM"],
    "model_type": "gpt_neo",
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "attn_logit_softcapping": 30.0,
    "rope_theta": {"__float__": "Infinity"},  # as transformers writes numbers that JSON has no form for
    "eos_token_id": 1,
}


def tried(directory: Path, config: dict[str, Any], *arguments: str) -> int:
    """Runs `etbuild init` for a folder of Hugging Face without weights."""
    folder = directory / "net"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return main.main(["init", "--huggingface", str(folder), "-o", str(directory), *arguments])


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        ({**NEO, "architectures": ["NoneForCausalLM"]}, 2, "transformers has no model `NoneForCausalLM`"),
        ({**NEO, "num_heads": 5}, 1, "making a `GPTNeoForCausalLM` of the configuration"),
    ],
)
def test_a_model_that_cannot_be_exported_has_no_manifest(
    config: dict[str, Any], code: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, config) == code
    said = capfd.readouterr().err
    assert message in said
    assert "no manifest is written; `--no-check` writes it all the same" in said
    assert not [*tmp_path.glob("*.yaml"), *tmp_path.glob("BUILD")]
    assert tried(tmp_path, config, "--no-check") == 0


TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT = {**TEXT, "model_type": "bert", "max_position_embeddings": 64}
LAYOUT = {**BERT, "model_type": "layoutlm"}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BLENDERBOT = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "is_encoder_decoder": True,
    "model_type": "blenderbot",
}
WAV2VEC2 = {
    **{key: value for key, value in TEXT.items() if key != "vocab_size"},
    "model_type": "wav2vec2",
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 8,
    "feat_proj_dropout": 0.0,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
}
CLIP = {
    "model_type": "clip",
    "text_config": {**TEXT, "max_position_embeddings": 16, "projection_dim": 16},
    "vision_config": {**VISION, "image_size": 32, "patch_size": 8, "projection_dim": 16},
    "projection_dim": 16,
}
SIGLIP2 = {
    "model_type": "siglip2",
    "text_config": {**TEXT, "max_position_embeddings": 16, "projection_size": 32},
    "vision_config": {**VISION, "num_patches": 16, "patch_size": 8},
}
ESM = {**BERT, "model_type": "esm", "position_embedding_type": "rotary", "pad_token_id": 1, "esmfold_config": None}
FUNNEL = {
    "model_type": "funnel",
    "vocab_size": 64,
    "d_model": 32,
    "n_head": 2,
    "d_head": 16,
    "d_inner": 32,
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
}
OF_PAIR = {**BERT, "max_position_embeddings": 512, "num_hidden_layers": 1}
PAIR = {
    "model_type": "encoder-decoder",
    "encoder": OF_PAIR,
    "decoder": {**OF_PAIR, "is_decoder": True, "add_cross_attention": True},
    "is_encoder_decoder": True,
    "decoder_start_token_id": 3,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TAPAS = {**BERT, "model_type": "tapas", "type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4], "pad_token_id": 0}
VITDET = {**VISION, "model_type": "vitdet", "image_size": 32, "patch_size": 16, "num_channels": 4}
MATTE = {
    "model_type": "vitmatte",
    "backbone_config": {**VITDET, "out_features": ["stage2"], "residual_block_indices": []},
    "hidden_size": 32,
    "convstream_hidden_sizes": [8, 8, 8],
    "fusion_hidden_sizes": [8, 8, 8, 8],
}
DECISION = {"model_type": "decision_transformer", "state_dim": 5, "act_dim": 3, "hidden_size": 32}
DECISION |= {"n_layer": 1, "n_head": 2, "max_ep_len": 64, "n_positions": 128}
STEPS = ["actions", "returns_to_go", "rewards", "states", "timesteps"]
RECURRENT = {**CONFIGS["recurrent_gemma"], "num_hidden_layers": 3, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("kind", "config", "task", "inputs"),
    [
        ("BlenderbotForConditionalGeneration", BLENDERBOT, "seq2seq", []),
        ("Wav2Vec2ForSequenceClassification", WAV2VEC2, "audio-classification", []),
        ("CLIPModel", CLIP, "zero-shot-image-classification", []),
        ("Siglip2Model", SIGLIP2, "zero-shot-image-classification", []),
        ("BertLMHeadModel", BERT, None, [[1, 16]]),
        ("LayoutLMForTokenClassification", LAYOUT, None, ["bbox", "input_ids"]),
        ("TapasForQuestionAnswering", TAPAS, None, ["input_ids", "token_type_ids"]),
        ("TapasForSequenceClassification", TAPAS, "text-classification", ["input_ids", "token_type_ids"]),
        ("VitMatteForImageMatting", MATTE, None, ["pixel_values"]),
        ("DecisionTransformerModel", DECISION, None, STEPS),
        ("BertForMultipleChoice", BERT, "multiple-choice", []),
        ("EsmForMaskedLM", ESM, "fill-mask", []),
        ("RecurrentGemmaForCausalLM", RECURRENT, None, [[1, 16]]),
        ("EncoderDecoderModel", PAIR, None, ["decoder_input_ids", "input_ids"]),
        ("DPRQuestionEncoder", {**BERT, "model_type": "dpr"}, None, [[1, 16]]),
        ("FunnelForTokenClassification", FUNNEL, "token-classification", ["attention_mask", "input_ids"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_else_a_class_may_be_is_tried(
    kind: str,
    config: dict[str, Any],
    task: str | None,
    inputs: list[Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert tried(tmp_path, {"architectures": [kind], **config}) == 0, capfd.readouterr().err
    manifest = validate.load(tmp_path / "net.yaml").data
    assert manifest["model"]["huggingface"].get("task") == task
    assert "cache" in manifest["model"]["huggingface"] or task != "seq2seq"
    methods = manifest.get("methods", {}).get("forward", {})
    given: list[Any] = [
        *methods.get("example_kwargs", {}),
        *(each["shape"] for each in methods.get("example_inputs", [])),
    ]
    assert sorted(given) == inputs


PHI: dict[str, Any] = {
    **TEXT,
    "model_type": "phi4_multimodal",
    "num_key_value_heads": 2,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "vision_config": {**VISION, "image_size": 28, "crop_size": 28, "patch_size": 14, "image_token_id": 10},
    "audio_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_blocks": 1,
        "num_attention_heads": 2,
        "ext_pw_out_channel": 32,
        "nemo_conv_channels": 32,
        "audio_token_id": 11,
    },
}
SOUNDS = "`image_pixel_values`, `image_sizes`, `audio_input_features`, `audio_embed_sizes` are left out"


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("BertForSequenceClassification", BERT, "also give `token_type_ids`, and this program does not take it"),
        ("BertForSequenceClassification", {**BERT, "type_vocab_size": 1}, None),
        ("BertForQuestionAnswering", {**BERT, "type_vocab_size": 2}, None),
        pytest.param("Phi4MultimodalForCausalLM", PHI, f"also reads images and sounds, .*: {SOUNDS}", marks=LONG),
    ],
    ids=["kinds of tokens", "one kind of tokens", "pairs", "images and sounds"],
)
def test_an_input_that_a_manifest_leaves_out_is_said(
    kind: str, config: dict[str, Any], said: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If leaving it out changes what the model computes."""
    assert tried(tmp_path, {"architectures": [kind], **config}) == 0, capfd.readouterr().err
    printed = capfd.readouterr().err
    assert bool(re.search(said or "this program does not", printed)) == (said is not None), printed


def test_the_image_is_never_left_out_of_a_text_with_it(tmp_path: Path) -> None:
    kind, config = "Florence2ForConditionalGeneration", {"model_type": "florence2", "text_config": {}}
    inputs = trial.class_inputs(kind)
    assert inputs is not None
    for first in other_methods.of(kind, config, Files(tmp_path, tmp_path, ()), inputs):
        assert [line for line in first.lines if "pixel_values" in line]


ONEFORMER = {
    "model_type": "oneformer",
    "backbone_config": {"model_type": "swin", "embed_dim": 8, "depths": [1] * 4, "num_heads": [1, 2, 2, 2]},
    "task_seq_len": 8,
}


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("InformerForPrediction", {"model_type": "informer"}, "its results come from a loop of its own, `generate`"),
        ("AutoformerForPrediction", {"model_type": "autoformer"}, "its results come from a loop of its own"),
        ("SpeechT5ForTextToSpeech", {"model_type": "speecht5"}, "its decoder takes `decoder_input_values` in place of"),
    ],
)
def test_a_class_with_unknown_inputs_has_no_manifest(
    kind: str, config: dict[str, Any], reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, {"architectures": [kind], **config}) == 2
    said = capfd.readouterr().err
    assert f"no first manifest is known for `{kind}`: {reason}" in said
    assert "write a factory with a method for one step of this loop" in said
    assert "also tried" not in said


def test_a_class_whose_weights_go_through_a_hook_is_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A build exports such a class only when it is lowered: the sound is too short for the last convolution."""
    kernels = {"conv_kernel": [10, 3, 3, 3, 3, 2, 2000]}
    assert tried(tmp_path, {"architectures": ["Wav2Vec2ForCTC"], **WAV2VEC2, **kernels}) == 1
    assert "Kernel size can't be greater than actual input size" in capfd.readouterr().err


def test_speech_of_a_decoder_has_a_length(tmp_path: Path) -> None:
    """The configuration of SpeechT5 does not say it."""
    kind, config = "SpeechT5ForSpeechToText", {"model_type": "speecht5", "conv_dim": [16] * 7}
    inputs = trial.class_inputs(kind)
    assert inputs is not None
    first = next(other_methods.of(kind, config, Files(tmp_path, tmp_path, ()), inputs))
    assert [line for line in first.model if "max_source_length: 160000" in line]
    assert first.lines == []


def test_a_table_that_grows_for_an_example_stays_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The encoder tells the shapes of the decoder's inputs in a run without values, and makes its table longer."""
    own = {key: BLENDERBOT[key] for key in BLENDERBOT if key.startswith(("encoder", "decoder", "vocab", "eos"))}
    sizes = {"model_type": "speecht5", "conv_dim": [16] * 7, "hidden_size": 32, "max_speech_positions": 64}
    sizes |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "max_text_positions": 66}
    config = {"architectures": ["SpeechT5ForSpeechToText"], **own, **sizes}
    assert tried(tmp_path, config) == 0, capfd.readouterr().err
    assert "task: speech-to-text" in (tmp_path / "net.yaml").read_text()


def test_a_task_gets_all_inputs_that_its_class_needs(tmp_path: Path) -> None:
    kind = "OneFormerForUniversalSegmentation"
    inputs = trial.class_inputs(kind)
    assert inputs is not None
    assert inputs.needed == ("pixel_values", "task_inputs")
    first = next(other_methods.of(kind, ONEFORMER, Files(tmp_path, tmp_path, ()), inputs))
    assert first.model == ["  task: universal-segmentation"]
    assert [line.partition("   #")[0] for line in first.lines] == [
        "forward:",
        "  example_kwargs:",
        "    pixel_values: {shape: [1, 3, 224, 224]}",
        "    task_inputs: {shape: [1, 8], dtype: int64}",
    ]


@pytest.mark.parametrize(
    ("changed", "rank", "message"),
    [({"use_dora": True}, 4, "`use_dora` asks for something else"), ({}, 3, "has to be [4, 32], and is [3, 32]")],
)
def test_an_adapter_that_does_not_fit_has_no_manifest(
    changed: dict[str, Any], rank: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "math"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", **changed}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    layer = "base_model.model.transformer.h.{}.attn.attention.q_proj.lora_{}.weight"
    weights = {layer.format(index, "A"): torch.ones(rank, 32) for index in range(2)}
    weights |= {layer.format(index, "B"): torch.ones(32, rank) for index in range(2)}
    save_file(weights, adapter / "adapter_model.safetensors")
    assert tried(tmp_path, NEO, "--adapter", str(adapter)) == 2
    assert message in capfd.readouterr().err
    assert not [*tmp_path.glob("*.yaml")]


def test_a_model_that_executorch_has_no_attention_for_gets_another_cache(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, GEMMA) == 0, capfd.readouterr().err
    text = (tmp_path / "net.yaml").read_text()
    assert "      kind: static   # `custom` fails: `custom_sdpa` cannot compute the attention" in text
    assert validate.load(tmp_path / "net.yaml").data["model"]["huggingface"]["cache"]["kind"] == "static"


def test_a_model_that_no_runner_can_run_gets_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True}
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    assert tried(tmp_path, {**config, **sizes, "eos_token_id": 1}) == 0
    said = "ExecuTorch's runner cannot run the program: nothing says which token a text of the decoder begins with."
    assert f"note: {said}" in capfd.readouterr().err
    assert f"# {said}" in (tmp_path / "net.yaml").read_text()
    assert "runner" not in validate.load(tmp_path / "net.yaml").data


def test_a_model_that_needs_a_kernel_that_the_runner_has_not_gets_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = runtime_limits._kernels()
    assert kernels is not None
    monkeypatch.setattr(runtime_limits, "_kernels", lambda: kernels - {"aten::embedding.out"})
    assert tried(tmp_path, {**NEO, "bos_token_id": 2, "eos_token_id": 1}) == 0, capfd.readouterr().err
    said = "there is no kernel for `aten::embedding.out`, which `forward` calls"
    printed = capfd.readouterr().err
    assert f"note: ExecuTorch's runner cannot run the program: {said}." in printed
    assert not [line for line in printed.splitlines() if line.startswith(("[", "Failed to load"))]
    assert "runner" not in validate.load(tmp_path / "net.yaml").data


def test_weights_that_do_not_fit_the_model_have_no_manifest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = transformers.LlamaConfig(**{key: GEMMA[key] for key in SIZES}, num_hidden_layers=3, eos_token_id=1)
    module = transformers.LlamaForCausalLM(config)
    folder = tmp_path / "net"
    module.save_pretrained(folder, max_shard_size="20KB")
    arguments = ["init", "--huggingface", str(folder), "-o", str(tmp_path / "out")]
    assert main.main(arguments) == 0, capfd.readouterr().err
    shutil.rmtree(tmp_path / "out")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 4}))
    assert main.main(arguments) == 2
    said = capfd.readouterr().err
    assert (
        "parameter `model.layers.3.input_layernorm.weight` float32[32] is missing in `model.safetensors.index.json`"
        in said
    )
    assert not (tmp_path / "out").exists()


def test_the_weights_of_a_packed_checkpoint_are_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "net"
    packed.write(folder, packed.model(), packed.gptq(), {"quant_method": "gptq", "bits": 4, "group_size": 32})
    arguments = ["init", "--huggingface", str(folder), "-o", str(tmp_path / "out")]
    assert main.main(arguments) == 0, capfd.readouterr().err
    assert "quantize: {torchao: [{config: packed}]}" in (tmp_path / "out/net.yaml").read_text()


def test_a_package_that_is_missing_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_NEEDED", ("torch", "no_such_package"))
    assert tried(tmp_path, NEO) == 0
    assert "note: the export was not checked, because no_such_package is not installed" in capfd.readouterr().err


COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = "/api/models/some/Tiny-1B/revision/{}"


def hub(files: dict[str, bytes]) -> Callable[[str, str, str], Answer]:
    """What a hub answers that has one model, on the branch `main` and the tag `v1`."""
    listed = {"id": "some/Tiny-1B", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": "0"} for name in files]

    def answer(method: str, path: str, login: str) -> Answer:
        del method, login
        place, commit = path.partition("?")[0], {"X-Repo-Commit": COMMIT}
        if place.startswith("/api/models/some/Tiny-1B/tree/"):
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        known = ["/api/models/some/Tiny-1B", *(HUB.format(each) for each in ("main", "v1", COMMIT))]
        if place in known:
            return 200, {"Content-Type": "application/json"}, json.dumps(listed).encode()
        name = place.removeprefix(f"/some/Tiny-1B/resolve/{COMMIT}/")
        if name in files:
            sha256 = hashlib.sha256(files[name]).hexdigest()
            return 200, {**commit, "ETag": f'"{sha256}"', "Content-Type": "application/octet-stream"}, files[name]
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    return answer


def test_a_model_of_a_hub_is_downloaded_and_pinned(tmp_path: Path) -> None:
    config = json.loads((EXAMPLES / "huggingface/bert.json").read_text())
    files = {
        "config.json": json.dumps({**config, "architectures": ["BertModel"]}).encode(),
        "model.safetensors": (EXAMPLES / "huggingface/bert.safetensors").read_bytes(),
        "README.md": b"# A model",
        "pytorch_model.bin": b"the same weights",
        "onnx/model.safetensors": b"other weights",
    }
    with serving(hub(files)) as server:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))
        }
        environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.port}", "HF_HOME": str(tmp_path / "hub")}
        words = ("init", "--huggingface", "hub:some/Tiny-1B@v1", "-o", tmp_path / "out", "--bazel")
        done = commands.etbuild(*words, environment=environment)
        assert done.returncode == 0, done.stderr
        unknown = ("init", "--huggingface", "hub:some/none", "-o", tmp_path / "out")
        refused = commands.etbuild(*unknown, environment=environment)
    assert (refused.returncode, "hub:some/none cannot be downloaded: " in refused.stderr) == (1, True), refused.stderr
    assert not [path for path, _ in server.seen if path.endswith((".md", ".bin")) or "onnx" in path]
    out = tmp_path / "out"
    assert os.readlink(out / "Tiny-1B").endswith(f"/models--some--Tiny-1B/snapshots/{COMMIT}")  # noqa: PTH115
    model = validate.load(out / "tiny_1b.yaml").data["model"]
    assert (model["huggingface"]["config"], model["weights"]) == ("Tiny-1B/config.json", "Tiny-1B/model.safetensors")
    assert 'weights = ["@tiny_1b_files//:Tiny-1B/model.safetensors"]' in (out / "BUILD").read_text()
    pins = (out / "tiny_1b.checkpoint.bzl").read_text()
    assert f'revision = "{COMMIT}"' in pins
    assert f'"model.safetensors": "{hashlib.sha256(files["model.safetensors"]).hexdigest()}"' in pins
    assert main.main(["build", str(out / "tiny_1b.yaml"), "-o", str(out), "--no-cache"]) == 0
