"""Reads a GGUF file with transformers, which knows the names and the layouts of llama.cpp for its own models."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath, InputError, Problem
from etbuild.extras import install_hint
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs import gguf_header

_SAME = (
    *("model_type", "hidden_size", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "num_experts", "num_experts_per_tok"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rope_theta", "sliding_window"),
)
"""What the configuration of the module and that of the file must agree on: the layout of weights, or what the model
computes, depends on it."""


def read(name: str, file: Path, place: DocumentPath, module: Any) -> dict[str, torch.Tensor]:
    """Reads a GGUF file: the tensors by the names of a module, in float32. Quantized tensors are dequantized.

    Args:
        name: The file's name in the manifest.
        file: The file.
        place: The place in the manifest that names it.
        module: A model of transformers.

    Raises:
        InputError: The file is damaged, or of another model.
        BuildError: The package `gguf` is missing.
    """
    _check_header(name, file, place)
    _check_kind(name, place, module)
    # transformers shows progress on standard error
    with wrap_library_errors(InputError, place, f"cannot read `{name}`"), contextlib.redirect_stderr(io.StringIO()):
        from gguf import GGUFReader
        from transformers.modeling_gguf_pytorch_utils import (
            TensorProcessor,
            get_gguf_hf_weights_map,
            load_gguf_checkpoint,
        )

        loaded = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=module)
        known = get_gguf_hf_weights_map(module, TensorProcessor())
        left_out = [tensor.name for tensor in GGUFReader(file).tensors if _is_left_out(tensor.name, known)]
    problems = [Problem(f"`{name}`: {message}", place) for message in _differences(loaded["config"], module)]
    hint = "is the configuration that of this file?"
    problems += [Problem(f"`{name}` has `{each}`, which is no weight of the module", place, hint) for each in left_out]
    if problems:
        raise InputError(problems)
    tensors: dict[str, torch.Tensor] = loaded["tensors"]
    return tensors


def _check_header(name: str, file: Path, place: DocumentPath) -> None:
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError as error:
        message = f"`{name}` needs the package gguf, which cannot be imported: {error}"
        raise BuildError.at(place, message, install_hint("huggingface", "gguf")) from None
    blocks = {int(kind): (int(of_block), int(size)) for kind, (of_block, size) in GGML_QUANT_SIZES.items()}
    try:
        with file.open("rb") as opened:
            gguf_header.check(opened, file.stat().st_size, blocks)
    except (OSError, ValueError) as error:
        raise InputError.at(place, f"cannot read `{name}`: {error}") from None


def _check_kind(name: str, place: DocumentPath, module: Any) -> None:
    """Checks that transformers knows which names the weights of such a model have in a GGUF file."""
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    try:
        get_gguf_hf_weights_map(module, TensorProcessor())
    except NotImplementedError:  # its message asks for another release of gguf, which would not help
        kind = module.config.get_text_config(decoder=True).model_type
        hint = "take the same weights as safetensors"
        if kind == "mistral":  # llama.cpp calls it llama, because only the sliding window is different
            hint += ", or, without a sliding window, write `config: {file: ..., set: {model_type: llama}}`"
        message = f"`{name}`: transformers reads no weights of a `{kind}` model from GGUF files"
        raise InputError.at(place, message, hint) from None


def _is_left_out(tensor: str, known: Collection[str]) -> bool:
    """Whether transformers left out a tensor, although it is a weight. Experts have names that it makes itself, and the
    frequencies of rotations follow from the configuration."""
    return tensor not in known and "exps" not in tensor and not tensor.startswith("rope_")


def _differences(of_file: dict[str, object], module: Any) -> Iterator[str]:
    """The differences between the configuration in a file and that of the module."""
    config = module.config.get_text_config(decoder=True)
    rotation = getattr(config, "rope_parameters", None) or {}
    for key in _SAME:
        wanted, found = getattr(config, key, rotation.get(key)), of_file.get(key)
        if None not in (wanted, found) and not _equal(wanted, found):
            yield f"its `{key}` is {found}, and that of the configuration is {wanted}"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)  # the file has 32 bits
    return bool(one == other)
