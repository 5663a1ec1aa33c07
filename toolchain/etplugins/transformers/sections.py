"""The types of a manifest's data: `make reference` writes them from `etplugins.transformers.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import Options


class Cache(TypedDict, total=False):
    """Data of `etplugins.transformers.parts.DecoderCache`."""

    max_length: int
    kind: str
    max_seq_length: int


class Dense(TypedDict, total=False):
    """Data of `etplugins.transformers.parts.DenseLayer`."""

    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


HuggingFace = TypedDict(
    "HuggingFace",
    {
        "class": str,
        "config": Options | str,
        "cache": Cache,
        "max_source_length": int,
        "pooling": str,
        "dense": list[Dense],
        "normalize": bool,
        "task": str,
        "attention": str,
        "logits": str,
        "generation_config": Options | str,
        "draft_layers": int,
    },
    total=False,
)
