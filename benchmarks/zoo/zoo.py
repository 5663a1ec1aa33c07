"""The models of the zoo, as manifests. Configurations come from `examples/gallery`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
GALLERY = HERE.parents[1] / "examples/gallery"
Json = dict[str, Any]
INT8 = {"pt2e": {"quantizers": [{"backend": "xnnpack", "options": {"per_channel": True}}]}}
INT8["pt2e"]["calibration"] = "example_inputs"  # type: ignore[assignment]
_8DA4W = {"torchao": [{"config": "8da4w", "group_size": 32}]}


def tokens(length: int) -> Json:
    """A text of this length."""
    return {"shape": [1, length], "dtype": "int64", "fill": "arange"}


def image(size: int) -> Json:
    """A grey image."""
    return {"shape": [1, 3, size, size], "fill": 0.5}


def method(entry: str, *inputs: Json, **keys: Any) -> Json:
    """A method of a manifest."""
    return {"entry": entry, "example_inputs": list(inputs), **keys}


_POSITION = {"shape": [1], "dtype": "int64"}
_ANY_LENGTH = [[None, {"dim": "seq", "min": 2, "max": 32}], None]
_DECODER = {
    "prefill": method("forward", tokens(16), _POSITION),
    "decode": method("forward", tokens(1), _POSITION),
}
_DYNAMIC_DECODER = {**_DECODER, "prefill": method("forward", tokens(16), _POSITION, dynamic_shapes=_ANY_LENGTH)}


@dataclass(frozen=True)
class Model:
    """One model of the zoo.

    Attributes:
        gallery: The manifest of `examples/gallery` with its configuration, or with its factory.
        methods: Its methods; None for those of the manifest.
        factory: The class of models.py; None for the factory of the manifest.
        config: Keys of the configuration that differ from those of the manifest.
        quantize: How all methods are quantized.
        share: Whether the methods share their mutable buffers.
    """

    gallery: str
    methods: Json | None = None
    factory: str | None = "Network"
    config: Json = field(default_factory=dict)
    quantize: Json = field(default_factory=dict)
    share: bool = False


def _decoder(gallery: str, methods: Json = _DECODER, quantize: Json | None = None, **config: Any) -> Model:
    return Model(gallery, methods, "Decoder", {"num_hidden_layers": 4, **config}, quantize or {}, share=True)


_BERT = {"num_hidden_layers": 4}
_VISION = {"num_hidden_layers": 4}
MODELS = {
    # Decoders with a cache
    "llama": _decoder("llama"),
    "llama, 8da4w": _decoder("llama", quantize=_8DA4W),
    "qwen 3, any length": _decoder("qwen3", _DYNAMIC_DECODER),
    "gemma 3": _decoder("gemma3", num_hidden_layers=3),
    "phi": _decoder("phi"),
    "mistral": _decoder("mistral"),
    "smollm 3, decode": _decoder("smollm3", {"decode": _DECODER["decode"]}),
    "gpt-2": Model("gpt2", _DECODER, "Decoder", {"n_layer": 4}, share=True),
    # Texts and speech
    "bert": Model("bert", {"forward": method("forward", tokens(16))}, config=_BERT),
    "bert, 4 lengths": Model("bert", {f"of_{n}": method("forward", tokens(n)) for n in (8, 16, 32, 64)}, config=_BERT),
    "bert, 8da4w": Model("bert", {"forward": method("forward", tokens(16))}, config=_BERT, quantize=_8DA4W),
    "t5": Model(
        "t5",
        {
            "encode": method("encode", tokens(12)),
            "decode": method("decode", tokens(6), {"shape": [1, 12, 64], "fill": 0.5}),
        },
        "EncoderDecoder",
    ),
    "whisper": Model(
        "whisper",
        {
            "encode": method("encode", {"shape": [1, 16, 64], "fill": 0.5}),
            "decode": method("decode", tokens(6), {"shape": [1, 32, 64], "fill": 0.5}),
        },
        "EncoderDecoder",
    ),
    "wav2vec 2.0": Model("wav2vec2"),
    "lstm": Model("lstm", factory=None),
    # Images
    "clip": Model(
        "clip",
        {
            "text": method("text", tokens(8)),
            "image": method("image", image(32)),
            "compare": method("compare", tokens(8), image(32)),
        },
        "TwoTowers",
    ),
    "vit": Model("vit", config=_VISION),
    "yolos": Model("yolos", config=_VISION),
    "sam's encoder": Model("sam"),
    "mobilenet v2": Model("mobilenet_v2"),
    "mobilenet v2, int8": Model("mobilenet_v2", quantize=INT8),
    "mobilenet v3": Model("mobilenet_v3", factory=None),
    "resnet": Model("resnet"),
    "resnet, 2 sizes, int8": Model(
        "resnet", {f"of_{size}": method("forward", image(size)) for size in (32, 64)}, quantize=INT8
    ),
    "efficientnet": Model("efficientnet"),
    "u-net": Model("unet", factory=None),
}


def write(which: str | Model, directory: Path) -> Path:
    """Writes a model with its sources into a new directory, and returns its manifest."""
    model = MODELS[which] if isinstance(which, str) else which
    manifest = yaml.safe_load((GALLERY / f"{model.gallery}.yaml").read_text("utf-8"))
    directory.mkdir(parents=True)
    if model.factory is None:
        shutil.copy(GALLERY / f"{model.gallery}.py", directory)
    else:
        shutil.copy(HERE / "models.py", directory)
        wanted = manifest["model"]["huggingface"]
        kwargs = {"name": wanted["class"], "config": {**wanted["config"], **model.config}}
        manifest["model"] = {"factory": f"models:{model.factory}", "kwargs": kwargs}
    if model.methods is not None:
        manifest["methods"] = model.methods
    if model.share:
        manifest["share_mutable_buffers"] = True
    if model.quantize:
        manifest["defaults"]["quantize"] = model.quantize
    manifest["name"] = "program"
    path = directory / "model.yaml"  # JSON is YAML, and the plain script reads it without a library
    path.write_text(json.dumps(manifest, indent=2), "utf-8")
    return path
