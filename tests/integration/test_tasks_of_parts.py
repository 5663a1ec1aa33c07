"""Tasks whose programs have several methods, or read pairs, series and images: they say what transformers says."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils._pytree import tree_leaves

from etbuild.cli import main
from tests.helpers import commands, single_calls
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import run
from tests.helpers.small_configurations import CODECS, IMAGE, SAM, SAM2, VITS

from .conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

VOCABULARY = 64
_TEXT: dict[str, Any] = {
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
_TOWERS: dict[str, dict[str, Any]] = {
    "clip": {
        "text_config": {**_TEXT, "projection_dim": 16},
        "vision_config": {**IMAGE, "projection_dim": 16},
        "projection_dim": 16,
    },
    "siglip": {"text_config": {**_TEXT, "projection_size": 32}, "vision_config": IMAGE},
    "siglip2": {
        "text_config": {**_TEXT, "projection_size": 32},
        "vision_config": {**{key: IMAGE[key] for key in IMAGE if key != "image_size"}, "num_patches": 16},
    },
}


def _config(family: str, own: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": family, **own}


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _program(folder: Path, made: Any, huggingface: dict[str, Any], **keys: Any) -> Path:
    return single_calls.program(folder, lambda inner: single_calls.folder_of(made, inner, huggingface, **keys))


def _check(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    largest = max(float(each.abs().max()) for each in expected[0])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * max(1.0, largest))


@pytest.mark.parametrize("family", _TOWERS)
def test_texts_are_compared_with_an_image(family: str, tmp_path: Path) -> None:
    config = _config(family, _TOWERS[family])
    made = single_calls.model("AutoModelForZeroShotImageClassification", config)
    wanted = {"task": "zero-shot-image-classification", "config": config, "max_source_length": 38}
    program = _program(tmp_path / "program", made, wanted)
    image, texts = _numbers(1, 3, 32, 32), [tokens(9, VOCABULARY, seed=seed) for seed in (1, 2, 3)]
    given = {"pixel_values": image} if family != "siglip2" else _patches(image)
    with torch.no_grad():
        expected = made(input_ids=torch.cat(texts), **given, return_dict=True)
    vectors = [[expected.image_embeds], *([each[None]] for each in expected.text_embeds)]
    calls = [("image_encoder", [image]), *(("text_encoder", [text]) for text in texts)]
    compared = ("scores", [expected.image_embeds, expected.text_embeds])
    [found] = run(program, [[*calls, compared]], tmp_path)
    _check(found, [*vectors, [expected.logits_per_image]])


def _patches(image: torch.Tensor) -> dict[str, torch.Tensor]:
    """The patches of 8 x 8 pixels of an image of 32 x 32, as SigLIP 2's processor makes them."""
    patches = image[0].reshape(3, 4, 8, 4, 8).permute(1, 3, 2, 4, 0).reshape(1, 16, -1)
    shapes = {"pixel_attention_mask": torch.ones((1, 16), dtype=torch.int32), "spatial_shapes": torch.tensor([[4, 4]])}
    return {"pixel_values": patches, **shapes}


@pytest.mark.parametrize("shape", [[2, 3, 32, 32], [3, 32, 32], [1, 1, 32, 32]])
def test_patches_of_anything_but_one_image_are_refused(shape: list[int], build: Build) -> None:
    huggingface = {"task": "zero-shot-image-classification", "config": _config("siglip2", _TOWERS["siglip2"])}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"huggingface": {**huggingface, "max_source_length": 38}},
        "methods": {"image_encoder": {"example_inputs": [{"shape": shape}]}, "text_encoder": {}, "scores": {}},
    }
    outcome = build(json.dumps(manifest))
    assert outcome.code == 2
    assert f"an image has the shape {shape}\n    write [1, 3, HEIGHT, WIDTH]: one image" in outcome.err


_FINDERS = ("owlvit", "owlv2")


@pytest.mark.parametrize("family", _FINDERS)
def test_from_a_folder_to_the_boxes_of_texts(family: str, tmp_path: Path) -> None:
    made = single_calls.model(
        "AutoModelForZeroShotObjectDetection", _config(family, {**_TOWERS["clip"], "projection_dim": 32})
    )
    made.save_pretrained(tmp_path / "net")
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path), "--name", "net"]) == 0
    assert "task: zero-shot-object-detection" in (tmp_path / "net.yaml").read_text()
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    image, texts = _numbers(1, 3, 32, 32), [tokens(9, VOCABULARY, seed=seed) for seed in (1, 2, 3)]
    with torch.no_grad():
        wanted = made(input_ids=torch.cat(texts), pixel_values=image, return_dict=True)
    features = wanted.image_embeds.flatten(1, 2)
    objects = [wanted.objectness_logits] if family == "owlv2" else []
    calls = [("image_encoder", [image]), *(("text_encoder", [text]) for text in texts)]
    compared = ("scores", [features, wanted.text_embeds[0]])
    [found] = run(tmp_path / "out/net.pte", [[*calls, compared]], tmp_path)
    vectors = [[each[None]] for each in wanted.text_embeds[0]]
    _check(found, [[features, wanted.pred_boxes, *objects], *vectors, [wanted.logits]])
    given = [f"text_encoder({each.tolist()})" for each in texts]
    command = ["scores", "image_encoder()[0]", f"[{', '.join(given)}]", "-o", str(tmp_path / "found.svg")]
    assert main.main(["run", str(tmp_path / "out/net.pte"), *command]) == 0
    assert "text " in (tmp_path / "found.svg").read_text()


@pytest.mark.parametrize("drawn", [True, False])
def test_a_text_is_spoken_as_by_transformers(drawn: bool, tmp_path: Path) -> None:
    """With the same random numbers. The application repeats what it got for each token."""
    config = {**VITS, "vocab_size": VOCABULARY, "use_stochastic_duration_prediction": drawn}
    torch.manual_seed(0)
    made = transformers.VitsModel(transformers.VitsConfig(**config)).eval()
    made.save_pretrained(tmp_path / "net")
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path), "--name", "net"]) == 0
    assert "task: text-to-speech" in (tmp_path / "net.yaml").read_text()
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    program, text = tmp_path / "out/net.pte", tokens(21, VOCABULARY, seed=3)
    torch.manual_seed(7)
    with torch.no_grad():
        wanted = made(text).waveform
    torch.manual_seed(7)
    noise = torch.randn(1, 2, 21) if drawn else torch.zeros(1, 2, 21)
    [[[means, variances, durations]]] = run(program, [[("text_encoder", [text, noise])]], tmp_path)
    frames = int(durations.sum())
    drawn_later = torch.randn_like(torch.empty(1, frames, 16).transpose(1, 2))  # transposed, as in transformers
    later = drawn_later.transpose(1, 2).contiguous()
    rows = [each.repeat_interleave(durations[0], dim=1) for each in (means, variances)]
    [[[heard]]] = run(program, [[("speech_decoder", [*rows, later])]], tmp_path)
    _check([[heard]], [[wanted]])
    save_file({"means": rows[0], "variances": rows[1], "noise": later}, tmp_path / "rows.safetensors")
    inputs = [f"{tmp_path}/rows.safetensors:{name}" for name in ("means", "variances", "noise")]
    assert main.main(["run", str(program), "speech_decoder", *inputs, "-o", str(tmp_path / "said.wav")]) == 0
    with wave.open(str(tmp_path / "said.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (16000, heard.shape[1], 1)
        said = torch.frombuffer(bytearray(file.readframes(heard.shape[1])), dtype=torch.int16) / 32767
    torch.testing.assert_close(said, heard[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", CODECS)
def test_a_codec_has_the_codes_and_the_sound_of_transformers(family: str, tmp_path: Path) -> None:
    config = _config(family, CODECS[family])
    made = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config)).eval()
    program = _program(tmp_path / "program", made, {"task": "audio-codec", "config": config, "max_source_length": 160})
    sound = _numbers(1, 1, 160) / 3
    with torch.no_grad():
        codes = made.encode(sound, return_dict=True).audio_codes
        scales = {"audio_scales": [None]} if family == "encodec" else {}
        expected = made.decode(audio_codes=codes, **scales, return_dict=True).audio_values
    [[[found], [heard]]] = run(program, [[("encoder", [sound]), ("decoder", [codes])]], tmp_path)
    assert found.dtype == codes.dtype == torch.int64
    assert found.shape == codes.shape
    assert float((found == codes).float().mean()) > 0.98  # two codes may be equally near
    _check([[heard]], [[expected]])


@pytest.mark.parametrize(("family", "own"), [("sam", SAM), ("sam2", SAM2)])
def test_masks_are_drawn_around_points(family: str, own: dict[str, Any], tmp_path: Path) -> None:
    """In SAM's `mask_decoder`, delegates of XNNPACK would wait for each other. SAM 2 has several maps of features."""
    config = _config(family, own)
    made, image = single_calls.model("AutoModelForMaskGeneration", config), _numbers(1, 3, 64, 64)
    given = [(_numbers(1, 1, count, 2, seed=count).abs() * 20, torch.ones((1, 1, count)).long()) for count in (1, 3)]
    with torch.no_grad():
        wanted = [made(pixel_values=image, input_points=points, input_labels=kinds) for points, kinds in given]
        features = [each.contiguous() for each in tree_leaves(made.get_image_embeddings(image))]
    program = _program(tmp_path / "program", made, {"task": "mask-generation", "config": config})
    found = run(program, [[("mask_decoder", [*features, points, kinds])] for points, kinds in given], tmp_path)
    _check([each for [each] in found], [[each.pred_masks, each.iou_scores] for each in wanted])
    [[encoded]] = run(program, [[("image_encoder", [image])]], tmp_path)
    _check([encoded], [features])
    around = [json.dumps(each.tolist()) for each in given[0]]
    command = ["mask_decoder", "image_encoder()", *around, "-o", str(tmp_path / "mask.svg")]
    assert main.main(["run", str(program), *command]) == 0
    assert (tmp_path / "mask.svg").read_text().count("<image") == 2


SERIES: dict[str, dict[str, Any]] = {
    "patchtst": {
        "num_input_channels": 2,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "prediction_length": 6,
        "num_hidden_layers": 2,
        "d_model": 16,
        "num_attention_heads": 4,
        "ffn_dim": 32,
    },
    "timesfm": {
        "patch_length": 8,
        "context_length": 32,
        "horizon_length": 16,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "head_dim": 8,
        "num_attention_heads": 4,
    },
}


@pytest.mark.parametrize("family", SERIES)
def test_the_future_of_a_series_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    config = _config(family, SERIES[family])
    cls = transformers.PatchTSTForPrediction if family == "patchtst" else transformers.TimesFmModelForPrediction
    made = cls(cls.config_class(**SERIES[family])).eval()
    named = {"class": cls.__name__, "config": config, "task": "time-series-prediction"}
    program = _program(tmp_path / "program", made, named)
    shape = (1, 32, 2) if family == "patchtst" else (1, 32)
    past = [_numbers(*shape, seed=seed) for seed in (1, 2)]
    [found] = run(program, [[("forward", [each]) for each in past]], tmp_path)
    name = "prediction_outputs" if family == "patchtst" else "mean_predictions"
    with torch.no_grad():
        expected = [[getattr(made(each), name)] for each in past]
    _check(found, expected)


ANSWERS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "question-answering": ("bert", "AutoModelForQuestionAnswering", _TEXT, ("start_logits", "end_logits")),
    "text-ranking": ("bert", "AutoModelForSequenceClassification", {**_TEXT, "num_labels": 1}, ("logits",)),
    "multiple-choice": ("bert", "AutoModelForMultipleChoice", _TEXT, ("logits",)),
}


@pytest.mark.parametrize("task", ANSWERS)
def test_from_a_folder_to_answers(task: str, tmp_path: Path) -> None:
    """`init` writes the types of tokens where two texts are read: without them, transformers takes both for one."""
    family, auto, own, outputs = ANSWERS[task]
    made = single_calls.model(auto, _config(family, own))
    made.save_pretrained(tmp_path / "net")
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path), "--name", "net"]) == 0
    assert f"task: {task}" in (tmp_path / "net.yaml").read_text()
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    pair = tokens(9, VOCABULARY, seed=4)
    inputs = {"input_ids": pair, "token_type_ids": torch.tensor([[0] * 4 + [1] * 5])}
    if task == "multiple-choice":
        inputs = {"input_ids": torch.stack([tokens(9, VOCABULARY, seed=seed)[0] for seed in range(4)])[None]}
    [found] = run(tmp_path / "out/net.pte", [[("forward", [*inputs.values()])]], tmp_path)
    with torch.no_grad():
        expected = made(**inputs, return_dict=True)
    _check(found, [[getattr(expected, name) for name in outputs]])


IMAGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "dinov2": ({**IMAGE, "mlp_ratio": 2}, "image-feature-extraction", "AutoModel"),
    "siglip_vision_model": (IMAGE, "image-feature-extraction", "AutoModel"),
    "resnet": (
        {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
        "image-feature-extraction",
        "AutoModel",
    ),
    "segformer": (
        {
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16,
        },
        "semantic-segmentation",
        "AutoModelForSemanticSegmentation",
    ),
    "dpt": (
        {
            **IMAGE,
            "backbone_out_indices": [0, 1, 2, 3],
            "num_hidden_layers": 4,
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 8,
            "is_hybrid": False,
        },
        "depth-estimation",
        "AutoModelForDepthEstimation",
    ),
    "videomae": (
        {**IMAGE, "num_frames": 4, "tubelet_size": 2},
        "video-classification",
        "AutoModelForVideoClassification",
    ),
    "vitpose": (
        {
            "backbone_config": {
                "model_type": "vitpose_backbone",
                "image_size": [32, 32],
                "patch_size": [8, 8],
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "out_indices": [2],
            },
            "num_labels": 5,
        },
        "keypoint-detection",
        "AutoModelForPoseEstimation",
    ),
}
_OUTPUTS = {
    "image-feature-extraction": "pooler_output",
    "semantic-segmentation": "logits",
    "depth-estimation": "predicted_depth",
    "keypoint-detection": "heatmaps",
    "video-classification": "logits",
}


@pytest.mark.parametrize("family", IMAGES)
def test_from_a_folder_to_what_an_image_shows(family: str, tmp_path: Path) -> None:
    own, task, auto = IMAGES[family]
    made = single_calls.model(auto, _config(family, own))
    made.save_pretrained(tmp_path / "net")
    (tmp_path / "net/preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path), "--name", "net"]) == 0
    assert f"task: {task}" in (tmp_path / "net.yaml").read_text()
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    frames = (4,) if family == "videomae" else ()
    images = [_numbers(1, *frames, 3, 32, 32, seed=seed) for seed in (1, 2)]
    [found] = run(tmp_path / "out/net.pte", [[("forward", [image]) for image in images]], tmp_path)
    with torch.no_grad():
        expected = [[getattr(made(image), _OUTPUTS[task])] for image in images]
    if task == "image-feature-extraction":
        expected = [[each.flatten(1)] for [each] in expected]
    _check(found, expected)


ENDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
WRITERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "is_decoder": True},
    "trocr": {  # makes positions from the number of tokens in the cache
        "max_position_embeddings": 32,
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 32,
        "cross_attention_hidden_size": 32,
    },
}


@pytest.mark.parametrize("family", WRITERS)
def test_an_image_becomes_a_text(family: str, tmp_path: Path) -> None:
    """An encoder of images and a decoder of text, as ViT-GPT2 and TrOCR have them."""
    vit, ends = transformers.ViTConfig(**IMAGE), ENDS
    keys = {**WRITERS[family], **ends, "vocab_size": VOCABULARY, "add_cross_attention": True}
    writer = transformers.AutoConfig.for_model(family, **keys)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, writer, **ends)
    made = transformers.VisionEncoderDecoderModel(config).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for each in made.parameters() if each.dim() > 1):
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 3
    made.save_pretrained(tmp_path / "net")
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path), "--name", "net"]) == 0
    assert "task: image-to-text" in (tmp_path / "net.yaml").read_text()
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    image, text = _numbers(1, 3, 32, 32), torch.tensor([[2, 5, 9, 7]])
    with torch.no_grad():
        states = made.get_encoder()(image).last_hidden_state
        scores = made(pixel_values=image, decoder_input_ids=text, use_cache=False).logits
    calls = [("text_decoder", [text[:, place : place + 1], states, torch.tensor([place])]) for place in range(4)]
    [found] = run(tmp_path / "out/net.pte", [[("encoder", [image]), *calls]], tmp_path)
    _check(found, [[states], *([scores[:, place]] for place in range(4))])


def test_a_pair_that_transformers_does_not_call_one_describes_an_image(tmp_path: Path) -> None:
    """BLIP has no `decoder_input_ids`: its decoder is a model of its own, which reads the features of an image."""
    text = {**_TEXT, "max_position_embeddings": 32, "encoder_hidden_size": 32, "sep_token_id": 2}
    config = transformers.BlipConfig(text_config=text, vision_config=IMAGE)
    made = transformers.BlipForConditionalGeneration(config).eval()
    numbers = torch.Generator().manual_seed(5)
    for parameter in (each for each in made.parameters() if each.dim() > 1):
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 3
    made.save_pretrained(tmp_path / "net")
    assert main.main(["init", "--huggingface", str(tmp_path / "net"), "-o", str(tmp_path), "--name", "net"]) == 0
    assert "task: image-to-text" in (tmp_path / "net.yaml").read_text()
    commands.build(tmp_path / "net.yaml", tmp_path / "out")
    image, said = _numbers(1, 3, 32, 32), torch.tensor([[2, 5, 9, 7]])
    with torch.no_grad():
        states = made.vision_model(image).last_hidden_state
        scores = made(pixel_values=image, input_ids=said).logits
    calls = [("text_decoder", [said[:, place : place + 1], states, torch.tensor([place])]) for place in range(4)]
    [found] = run(tmp_path / "out/net.pte", [[("encoder", [image]), *calls]], tmp_path)
    _check(found, [[states], *([scores[:, place]] for place in range(4))])


@pytest.mark.parametrize(
    ("huggingface", "message"),
    [
        (
            {
                "class": "BertModel",
                "task": "zero-shot-object-detection",
                "config": _TEXT,
                "max_source_length": 8,
            },
            "`BertModel` has no `image_embedder`, which `task: zero-shot-object-detection` needs",
        ),
        (
            {"class": "BertModel", "task": "text-to-speech", "config": _TEXT, "max_source_length": 9},
            "`BertModel` has no `text_encoder`, which `task: text-to-speech` needs",
        ),
        (
            {"task": "audio-codec", "config": _config("bert", _TEXT), "max_source_length": 160},
            "`BertModel` is no codec: it has no `encode` and `decode` with `audio_codes`",
        ),
        (
            {"task": "audio-codec", "config": _config("mimi", CODECS["mimi"])},
            "the configuration of `MimiModel` does not say the length of a sound\n    add `max_source_length: 24000`",
        ),
        (
            {"class": "BertModel", "task": "mask-generation", "config": _TEXT},
            "`BertModel` has no `get_image_embeddings`, which `task: mask-generation` needs",
        ),
        (
            {
                "class": "BertModel",
                "task": "zero-shot-image-classification",
                "config": _TEXT,
                "max_source_length": 8,
            },
            "`BertModel` has no `get_image_features`, which `task: zero-shot-image-classification` needs",
        ),
        (
            {
                "task": "zero-shot-image-classification",
                "config": _config("clip", _TOWERS["clip"]),
                "max_source_length": 39,
            },
            "max_source_length 39 is more than the 38 tokens that `CLIPModel` takes\n    write 38 or less",
        ),
        (
            {"task": "image-feature-extraction", "pooling": "cls", "config": _config("resnet", IMAGES["resnet"][0])},
            "",
        ),
    ],
)
def test_a_model_that_does_not_fit_its_task_is_named(
    huggingface: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = {"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}}
    (tmp_path / "net.yaml").write_text(json.dumps(manifest))
    assert main.main(["build", str(tmp_path / "net.yaml"), "-o", str(tmp_path / "out"), "--no-cache"]) != 0
    assert message in capsys.readouterr().err
