"""Tasks that have all of their input in one call: ExecuTorch's runtime says what transformers says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etbuild.inputs.step_context import StepContext
from etbuild.key.declared import Inputs
from etbuild.model import module
from etbuild.plan.parts import ModuleSource
from etplugins.transformers.parts import HuggingFace
from tests.helpers import commands, depth_estimation, single_calls
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

VOCABULARY, LONGEST = 64, 36
_OF_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 38,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_VIT: dict[str, Any] = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
}
_DECODER = {**_OF_TEXT, "num_key_value_heads": 2, "head_dim": 8}
EMBEDDERS: dict[str, tuple[dict[str, Any], str]] = {
    "bert": (_OF_TEXT, "cls"),
    "roberta": (_OF_TEXT, "mean"),
    "mpnet": (_OF_TEXT, "mean"),
    "xlm-roberta": (_OF_TEXT, "cls"),
    "distilbert": ({"vocab_size": 64, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}, "mean"),
    "modernbert": ({**_OF_TEXT, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 8}, "mean"),
    "nomic_bert": (_OF_TEXT, "mean"),
    "qwen3": (_DECODER, "last"),
    "gemma3_text": ({**_DECODER, "use_bidirectional_attention": True, "sliding_window": 8}, "mean"),
}
_LENGTHS = (1, 2, 7, LONGEST)


def pooled(made: Any, text: torch.Tensor, pooling: str) -> torch.Tensor:
    """The embedding of a text as sentence-transformers computes it: with a mask of all tokens, and its length is 1."""
    with torch.no_grad():
        features = made(input_ids=text, attention_mask=torch.ones_like(text)).last_hidden_state
    mask = torch.ones_like(text).unsqueeze(-1).expand(features.shape).to(features.dtype)
    found = {
        "cls": lambda: features[:, 0],
        "last": lambda: features[:, -1],
        "mean": lambda: torch.sum(features * mask, 1) / torch.clamp(mask.sum(1), min=1e-9),
    }[pooling]()
    return torch.nn.functional.normalize(found, p=2, dim=1)


def embedder(name: str) -> tuple[Any, dict[str, Any]]:
    """The model of transformers, and the `model.huggingface` of its manifest."""
    own, pooling = EMBEDDERS[name]
    config = {"model_type": name, **own}
    wanted = {"task": "feature-extraction", "pooling": pooling, "normalize": True, "max_source_length": LONGEST}
    return single_calls.model("AutoModel", config), {"config": config, **wanted}


@pytest.mark.long
@pytest.mark.parametrize("name", EMBEDDERS)
def test_an_embedding_is_that_of_sentence_transformers(name: str, shared_directory: Path, tmp_path: Path) -> None:
    made, huggingface = embedder(name)
    program = single_calls.program(
        shared_directory / f"embedder-{name}", lambda folder: single_calls.folder_of(made, folder, huggingface)
    )
    texts = [tokens(length, VOCABULARY, seed=length) for length in _LENGTHS]
    [outputs] = run(program, [[("forward", [text]) for text in texts]], tmp_path)
    expected = [pooled(made, text, huggingface["pooling"]) for text in texts]
    for (actual,), wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    assert max(float(one @ other.T) for one, other in itertools.pairwise(expected)) < 0.999


def padded(texts: list[torch.Tensor], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths as one batch, and its mask."""
    rows, mask = torch.full((len(texts), LONGEST), _OF_TEXT["pad_token_id"]), torch.zeros(len(texts), LONGEST).long()
    for row, text in enumerate(texts):
        place = slice(LONGEST - text.shape[1], None) if left else slice(text.shape[1])
        rows[row, place], mask[row, place] = text[0], 1
    return rows, mask


TEXTS = [2 + tokens(length, VOCABULARY - 2, seed=length) for length in _LENGTHS]  # without the token of padding


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("name", EMBEDDERS)
def test_each_row_of_a_batch_is_that_of_a_call_with_only_its_text(name: str, pooling: str) -> None:
    made, huggingface = embedder(name)
    wanted = HuggingFace(model_class="AutoModel", **{**huggingface, "pooling": pooling})
    created: Any = module.create(ModuleSource(huggingface=wanted), StepContext(Inputs())).eval()
    created.load_state_dict(made.state_dict())
    expected = torch.cat([pooled(made, text, pooling) for text in TEXTS])
    # Encoders number their positions from the first place; what a decoder computes does not depend on that.
    for left in (False, True) if name == "qwen3" else (False,):
        rows, mask = padded(TEXTS, left)
        with torch.no_grad():
            (actual,) = created(input_ids=rows, attention_mask=mask)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "roberta", "qwen3"])
def test_a_program_takes_several_texts_in_a_call(name: str, shared_directory: Path, tmp_path: Path) -> None:
    made, huggingface = embedder(name)
    example = {"shape": [3, 8], "dtype": "int64", "fill": "ones"}
    dims = [{"dim": "texts", "min": 1, "max": 8}, {"dim": "seq", "min": 1, "max": LONGEST}]
    names = ("input_ids", "attention_mask")
    forward = {"example_kwargs": dict.fromkeys(names, example), "dynamic_kwargs_shapes": dict.fromkeys(names, dims)}
    program = single_calls.program(
        shared_directory / f"batches-{name}",
        lambda folder: single_calls.folder_of(made, folder, huggingface, methods={"forward": forward}),
    )
    batches = [TEXTS, TEXTS[:1], TEXTS[1:3]]
    [outputs] = run(program, [[("forward", [*padded(texts, left=False)]) for texts in batches]], tmp_path)
    for (actual,), texts in zip(outputs, batches, strict=True):
        expected = torch.cat([pooled(made, text, huggingface["pooling"]) for text in texts])
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


DENSE: list[tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ({"in_features": 32, "out_features": 48}, {"linear.weight": (48, 32), "linear.bias": (48,)}),
    (
        {
            "in_features": 48,
            "out_features": 12,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "use_residual": True,
        },
        {"linear.weight": (12, 48), "residual.weight": (12, 48)},
    ),
]
"""The configuration of each `Dense` module, and its weights. The defaults are those of sentence-transformers."""


def test_from_a_folder_of_sentence_transformers_to_embeddings(tmp_path: Path) -> None:
    """The weights of the transformer are those of an older release, whose files hold the positions too."""
    made, _ = embedder("bert")
    folder = tmp_path / "embedder"
    made.save_pretrained(folder)
    held = {**made.state_dict(), "embeddings.position_ids": torch.arange(38).unsqueeze(0)}
    save_file({key: value.clone() for key, value in held.items()}, folder / "model.safetensors")
    kinds = ["Transformer", "Pooling", *("Dense" for _ in DENSE), "Normalize"]
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{number}_{kind}" if number else ""}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    numbers, layers = torch.Generator().manual_seed(8), []
    for number, (config, shapes) in enumerate(DENSE, start=2):
        layers.append({name: torch.randn(shape, generator=numbers) / 4 for name, shape in shapes.items()})
        (folder / f"{number}_Dense").mkdir()
        (folder / f"{number}_Dense/config.json").write_text(json.dumps(config))
        save_file(layers[-1], folder / f"{number}_Dense/model.safetensors")
    assert main.main(["init", "--huggingface", str(folder), "-o", str(tmp_path), "--name", "net"]) == 0
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    text = tokens(9, VOCABULARY, seed=9)
    [[[actual]]] = run(tmp_path / "out/net.pte", [[("forward", [text])]], tmp_path)
    with torch.no_grad():
        features = made(input_ids=text).last_hidden_state.mean(dim=1)
    features = torch.tanh(features @ layers[0]["linear.weight"].T + layers[0]["linear.bias"])
    features = features @ layers[1]["linear.weight"].T + features @ layers[1]["residual.weight"].T
    torch.testing.assert_close(actual, torch.nn.functional.normalize(features, dim=-1), rtol=1e-4, atol=1e-5)


def test_without_pooling_every_token_has_its_features(tmp_path: Path) -> None:
    made, huggingface = embedder("bert")
    wanted = {key: huggingface[key] for key in ("task", "config", "max_source_length")}
    program = single_calls.program(
        tmp_path / "program", lambda folder: single_calls.folder_of(made, folder, {"class": "BertModel", **wanted})
    )
    texts = [tokens(length, VOCABULARY, seed=length) for length in _LENGTHS]
    [outputs] = run(program, [[("forward", [text]) for text in texts]], tmp_path)
    with torch.no_grad():
        expected = [[made(input_ids=text).last_hidden_state] for text in texts]
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)


LABELS = {"id2label": {"0": "bad", "1": "good", "2": "größer"}, "label2id": {"bad": 0, "good": 1, "größer": 2}}
_OF_IMAGE: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 32, 32]}
CLASSIFIERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("text-classification", "AutoModelForSequenceClassification", _OF_TEXT),
    "deberta-v2": ("text-classification", "AutoModelForSequenceClassification", _OF_TEXT),
    "qwen3": ("text-classification", "AutoModelForSequenceClassification", _DECODER),
    "distilbert": ("token-classification", "AutoModelForTokenClassification", EMBEDDERS["distilbert"][0]),
    "xlm-roberta": ("token-classification", "AutoModelForTokenClassification", _OF_TEXT),
    "vit": (
        "image-classification",
        "AutoModelForImageClassification",
        {**_VIT, "image_size": [32, 48], "patch_size": 16, "num_channels": 1},
    ),
    "convnext": ("image-classification", "AutoModelForImageClassification", {**_OF_IMAGE, "image_size": 64}),
    "resnet": ("image-classification", "AutoModelForImageClassification", {**_OF_IMAGE, "embedding_size": 8}),
}
_SIZES = {"vit": (1, 1, 32, 48), "convnext": (1, 3, 64, 64), "resnet": (1, 3, 32, 64)}


def classifier(name: str) -> tuple[Any, dict[str, Any]]:
    """The model of transformers, and the `model.huggingface` of its manifest."""
    task, auto, own = CLASSIFIERS[name]
    config, length = {"model_type": name, **own, **LABELS}, {} if name in _SIZES else {"max_source_length": LONGEST}
    return single_calls.model(auto, config), {"task": task, "config": config, **length}


@pytest.mark.long
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_are_those_of_transformers(name: str, shared_directory: Path, tmp_path: Path) -> None:
    made, huggingface = classifier(name)
    sized = {"methods": {"forward": {"example_inputs": [{"shape": _SIZES["resnet"]}]}}}
    keys = sized if name == "resnet" else {}  # the others have the size of their configuration
    program = single_calls.program(
        shared_directory / f"classifier-{name}",
        lambda folder: single_calls.folder_of(made, folder, huggingface, **keys),
    )
    inputs = [tokens(length, VOCABULARY, seed=length) for length in _LENGTHS]
    if name in _SIZES:
        inputs = [torch.randn(_SIZES[name], generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    [outputs] = run(program, [[("forward", [each]) for each in inputs]], tmp_path)
    with torch.no_grad():
        expected = [[made(each).logits] for each in inputs]
    largest = max(float(each.abs().max()) for (each,) in expected)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4 * largest)
    assert (largest > 0.01, float((expected[0][0] - expected[1][0]).abs().max()) > 0.01 * largest) == (True, True)


def test_the_program_has_the_names_of_its_labels(shared_directory: Path, tmp_path: Path) -> None:
    made, huggingface = classifier("bert")
    program = single_calls.program(
        shared_directory / "classifier-bert", lambda folder: single_calls.folder_of(made, folder, huggingface)
    )
    [[[labels]]] = run(program, [[("get_labels", [])]], tmp_path)
    assert json.loads(str(labels)) == ["bad", "good", "größer"]


def test_a_pair_of_texts_has_the_types_of_its_tokens(tmp_path: Path) -> None:
    made, huggingface = classifier("bert")
    example, dim = {"shape": [1, 8], "dtype": "int64"}, [None, {"dim": "seq", "min": 1, "max": LONGEST}]
    names = ("input_ids", "token_type_ids")
    forward = {"example_kwargs": dict.fromkeys(names, example), "dynamic_kwargs_shapes": dict.fromkeys(names, dim)}
    path = single_calls.folder_of(made, tmp_path / "net", huggingface, methods={"forward": forward})
    program = single_calls.program(tmp_path / "program", lambda _: path)
    pair, types = tokens(9, VOCABULARY, seed=9), torch.tensor([[0] * 4 + [1] * 5])
    [[[actual]]] = run(program, [[("forward", [pair, types])]], tmp_path)
    with torch.no_grad():
        expected = made(input_ids=pair, token_type_ids=types).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


_RESNET = {"model_type": "resnet", **_OF_IMAGE, "embedding_size": 8}
_DETR: dict[str, Any] = {
    "backbone_config": {**_RESNET, "out_features": ["stage4"]},
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 6,
}
_FEATURE_MAPS = ["stage2", "stage3", "stage4"]
DETECTORS: dict[str, dict[str, Any]] = {
    "yolos": {**_VIT, "num_hidden_layers": 2, "image_size": [32, 48], "patch_size": 8, "num_detection_tokens": 6},
    "detr": _DETR,
    "deformable_detr": {
        **_DETR,
        "backbone_config": {**_RESNET, "out_features": _FEATURE_MAPS},
        "disable_custom_kernels": True,
    },
    "rt_detr": {
        "backbone_config": {
            **_RESNET,
            "model_type": "rt_detr_resnet",
            "hidden_sizes": [8, 16, 32, 64],
            "layer_type": "basic",
            "out_features": _FEATURE_MAPS,
        },
        "encoder_in_channels": [16, 32, 64],
        "decoder_in_channels": [32, 32, 32],
        "encoder_hidden_dim": 32,
        "num_queries": 6,
        **{key: _DETR[key] for key in _DETR if key.startswith(("d_model", "decoder", "encoder_att", "encoder_ffn"))},
    },
}


@pytest.mark.long
@pytest.mark.parametrize("name", DETECTORS)
def test_boxes_are_those_of_transformers(name: str, shared_directory: Path, tmp_path: Path) -> None:
    config = {**DETECTORS[name], **LABELS, "model_type": name}
    made = single_calls.model("AutoModelForObjectDetection", config)
    shape = [1, 3, 32, 48] if name == "yolos" else [1, 3, 64, 96]
    keys = {} if name == "yolos" else {"methods": {"forward": {"example_inputs": [{"shape": shape}]}}}
    program = single_calls.program(
        shared_directory / f"detector-{name}",
        lambda folder: single_calls.folder_of(made, folder, {"task": "object-detection", "config": config}, **keys),
    )
    images = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    [outputs] = run(program, [[("forward", [image]) for image in images]], tmp_path)
    with torch.no_grad():
        found = [made(image) for image in images]
    expected = [[each.logits, each.pred_boxes] for each in found]
    torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-3)
    assert [tuple(each.shape) for each in expected[0]] == [(1, 6, expected[0][0].shape[2]), (1, 6, 4)]
    assert float((expected[0][1] - expected[1][1]).abs().max()) > 1e-3


_LETTERS = ["<pad>", *"|abcdefghijklmnopqrstuvwxyz'-"]
_OF_WAVES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
_OF_FRAMES = {key: _OF_WAVES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
_PARAKEET = {"intermediate_size": 64, "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5}
CTCS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "wav2vec2": ({**_OF_WAVES, "feat_extract_norm": "layer", "do_stable_layer_norm": True}, (1, 4000)),
    "hubert": (_OF_WAVES, (1, 4000)),
    "wav2vec2-bert": ({**_OF_FRAMES, "intermediate_size": 64, "feature_projection_input_dim": 16}, (1, 60, 16)),
    "parakeet_ctc": ({"encoder_config": {**_OF_FRAMES, **_PARAKEET}}, (1, 90, 16)),
}


def ctc(name: str) -> tuple[Any, dict[str, Any]]:
    """The model of transformers, and the `model.huggingface` of its manifest."""
    own, shape = CTCS[name]
    config = {"model_type": name, "vocab_size": len(_LETTERS), "pad_token_id": 0, **own}
    wanted = {"task": "automatic-speech-recognition", "max_source_length": shape[1]}
    return single_calls.model("AutoModelForCTC", config), {"config": config, **wanted}


def written(scores: torch.Tensor, blank: int) -> list[int]:
    """The tokens of the best label of each frame, as docs/speech.md shows."""
    best = scores[0].argmax(dim=-1).tolist()
    return [token for token, before in zip(best, [None, *best], strict=False) if token not in (before, blank)]


@pytest.mark.parametrize("name", CTCS)
def test_frames_of_speech_are_those_of_transformers(name: str, shared_directory: Path, tmp_path: Path) -> None:
    """The sounds have any length: torch.export cannot prove what it asks of their frames, and the driver tries them."""
    (made, huggingface), (_, longest, *features) = ctc(name), CTCS[name][1]
    shortest = longest // 10
    shape = [None, {"dim": "length", "min": shortest, "max": longest}, *(None for _ in features)]
    program = single_calls.program(
        shared_directory / f"ctc-{name}",
        lambda folder: single_calls.folder_of(
            made, folder, huggingface, methods={"forward": {"dynamic_shapes": [shape]}}
        ),
    )
    lengths = (longest, shortest, longest // 3, longest - 1)
    sounds = [torch.randn(1, size, *features, generator=torch.Generator().manual_seed(size)) for size in lengths]
    [[*outputs, [blank]]] = run(
        program, [[*(("forward", [sound]) for sound in sounds), ("get_blank_id", [])]], tmp_path
    )
    with torch.no_grad():
        expected = [[made(sound).logits] for sound in sounds]
    largest = float(expected[0][0].abs().max())
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4 * largest)
    (tmp_path / "vocab.json").write_text(json.dumps({letter: index for index, letter in enumerate(_LETTERS)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), bos_token=None, eos_token=None)
    [text] = tokenizer.batch_decode(expected[0][0].argmax(dim=-1))
    letters = "".join(_LETTERS[token] for token in written(outputs[0][0], int(blank)))
    assert letters.replace("|", " ").strip() == text
    assert len(set(letters)) > 1


def test_the_views_of_a_dynamic_sound_fit_into_memory(build: Build) -> None:
    """The runtime could not load Parakeet with the memory that ExecuTorch plans. The build runs it with long sounds."""
    _, huggingface = ctc("parakeet_ctc")
    forward = {
        "example_inputs": [{"shape": [1, 64, 16]}],
        "dynamic_shapes": [[None, {"dim": "frames", "multiple_of": 8, "min": 16, "max": 128}, None]],
    }
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"huggingface": huggingface},
        "methods": {"forward": forward},
        "defaults": {"partitioners": ["xnnpack"]},
    }
    outcome = build(json.dumps(manifest))
    assert outcome.code == 0, outcome.err


_T5 = {"model_type": "t5", "vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
_FEATURES = {"task": "feature-extraction", "max_source_length": 8}
_LAYER = {"in_features": 8, "out_features": 4}


@pytest.mark.parametrize(
    ("huggingface", "methods", "message"),
    [
        (
            {**_FEATURES, "config": {"model_type": "mpnet", **_OF_TEXT}, "max_source_length": 37},
            None,
            "max_source_length 37 is more than the 36 tokens that `MPNetModel` takes\n    write 36 or less",
        ),
        (
            {**_FEATURES, "config": {"model_type": "nomic_bert", **_OF_TEXT}, "max_source_length": 39},
            None,
            "max_source_length 39 is more than the 38 tokens that `NomicBertModel` takes\n    write 38 or less",
        ),
        (
            {**_FEATURES, "config": _T5},
            None,
            "`T5Model` is an encoder and a decoder, and `task: feature-extraction` calls one of them\n"
            "    name the class of the encoder, such as T5EncoderModel",
        ),
        (
            {**_FEATURES, "config": _VIT},
            None,
            "`ViTModel` takes `pixel_values`, and `task: feature-extraction` gives it tokens",
        ),
        (
            {"task": "image-classification", "config": {"model_type": "bert", **_OF_TEXT}, "class": "BertForMaskedLM"},
            None,
            "`BertForMaskedLM` takes `input_ids`, and `task: image-classification` gives it an image",
        ),
        (
            {"task": "image-classification", "config": _RESNET},
            None,
            "the configuration of `ResNetForImageClassification` does not say the shape of an image\n"
            "    write `methods: {forward: {example_inputs: [{shape: [1, 3, HEIGHT, WIDTH]}]}}`",
        ),
        (
            {
                "task": "automatic-speech-recognition",
                "config": {"model_type": "hubert", "vocab_size": 9, "pad_token_id": 0, **_OF_WAVES},
            },
            None,
            "the configuration of `HubertForCTC` does not say the shape of a sound\n"
            "    write `methods: {forward: {example_inputs: [{shape: [1, SAMPLES]}]}}`, or `max_source_length`",
        ),
        (
            {**_FEATURES, "class": "BertForMaskedLM", "config": {"model_type": "bert", **_OF_TEXT}},
            None,
            "`task: feature-extraction` returns `last_hidden_state`, which the output of `BertForMaskedLM` lacks\n"
            "    leave out `class`: it is then `AutoModel`",
        ),
        (
            {**_FEATURES, "dense": [_LAYER], "config": {"model_type": "bert", **_OF_TEXT}},
            None,
            "dense[0].in_features: the layer takes 8 features, and the model gives 32\n    write 32",
        ),
        (
            {**_FEATURES, "dense": [{**_LAYER, "activation": "Softly"}], "config": {"model_type": "bert", **_OF_TEXT}},
            None,
            "torch.nn has no activation `Softly` without arguments\n    such as Tanh or Identity",
        ),
    ],
)
def test_what_cannot_be_a_program_is_named(
    huggingface: dict[str, Any], methods: dict[str, Any] | None, message: str, build: Build
) -> None:
    keys = {} if methods is None else {"methods": methods}
    document = {"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}, **keys}
    outcome = build(json.dumps(document))
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_a_task_of_a_plugin_returns_the_outputs_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    depth_estimation.provide(monkeypatch)
    sizes = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "decoder_hidden_size": 8}
    config = {"model_type": "glpn", "num_attention_heads": [1, 1, 1, 1], **sizes}
    task: Any = depth_estimation.NAME
    wanted = HuggingFace(model_class=depth_estimation.CLASS, config=config, task=task)
    made: Any = module.create(ModuleSource(huggingface=wanted), StepContext(Inputs())).eval()
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        (depth,) = made(image)
        expected = super(type(made), made).forward(image).predicted_depth
    torch.testing.assert_close(depth, expected)
