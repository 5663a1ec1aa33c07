"""Reads a GGUF file as transformers does, which knows the names and the layouts of llama.cpp for its own models."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etbuild.errors import BuildError, DocumentPath, InputError, Problem
from etbuild.extras import install_hint
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs import gguf_header
from etbuild.model.packed import gguf_blocks
from etbuild.model.packed.integers import Integers
from etbuild.model.tensor_files import TensorFile
from etbuild.processes.memory import give_back

_SAME = (
    *("model_type", "hidden_size", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "num_experts", "num_experts_per_tok"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rope_theta", "sliding_window"),
)
"""What the configuration of the module and that of the file must agree on: the layout of weights, or what the model
computes, depends on it."""


def opened(name: str, file: Path, place: DocumentPath, module: Any) -> TensorFile:
    """Opens a GGUF file. Its tensors have the names of a module, and are dequantized to float32 when they are read.

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
        found = _Gguf(name, file, place, module)
    problems = [Problem(f"`{name}`: {message}", place) for message in _differences(found.config, module)]
    hint = "is the configuration that of this file?"
    left_out = found.left_out
    problems += [
        Problem(f"`{name}` has `{each}`, which is not a weight of the module", place, hint) for each in left_out
    ]
    if problems:
        raise InputError(problems)
    return found


@dataclass(frozen=True)
class _Stored:
    """A tensor in the file.

    Attributes:
        name: Its name in the file.
        kind: The kind of its blocks.
        offset: The place of its first byte.
        shape: The shape of its data.
        dtype: The type of its data: bytes, if they are blocks.
    """

    name: str
    kind: Any
    offset: int
    shape: tuple[int, ...]
    dtype: Any


class _Gguf(TensorFile):
    """A GGUF file, whose tensors are read one by one. transformers makes one tensor of several for the experts of a
    mixture.

    Attributes:
        config: What the file says about the model.
        left_out: The names of weights in the file that transformers has no place for.
    """

    def __init__(self, name: str, file: Path, place: DocumentPath, module: Any) -> None:
        from gguf import GGUFReader
        from transformers import modeling_gguf_pytorch_utils as of_transformers

        self._called, self._file, self._place = name, file, place
        reader = GGUFReader(file)
        self.config: dict[str, Any] = of_transformers.load_gguf_checkpoint(str(file))["config"]
        [architecture] = of_transformers.read_field(reader, "general.architecture")
        kind = of_transformers.TENSOR_PROCESSORS.get(architecture, of_transformers.TensorProcessor)
        self._processor = kind(config=self.config)
        self._known: dict[str, str] = of_transformers.get_gguf_hf_weights_map(module, self._processor)
        self._stored: dict[str, list[_Stored]] = {}
        self._shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
        self.left_out = [one.name for one in reader.tensors if _is_left_out(one.name, self._known)]
        for one in reader.tensors:
            stored = _Stored(one.name, one.tensor_type, one.data_offset, one.data.shape, one.data.dtype)
            for of_module, shape in self._made_of(one.name, one.shape[::-1]).items():
                self._stored.setdefault(of_module, []).append(stored)
                self._shapes[of_module] = shape
        super().__init__(dict.fromkeys(self._stored))

    def _made_of(self, name: str, shape: Any) -> dict[str, list[int]]:
        """The tensors of the module to which a tensor in the file belongs, and their shapes."""
        if name in self._known:
            stand_in = np.broadcast_to(np.float32(-1), shape)  # it has a shape and no memory
            return {of_module: list(made.shape) for of_module, made in self._processed(stand_in, name).items()}
        small = np.full((*shape[:1], *(2 for _ in shape[1:])), -1, np.float32)
        return {of_module: self._shapes.get(of_module, []) for of_module in self._processed(small, name)}

    def _processed(self, weights: Any, name: str, joined: dict[str, Any] | None = None) -> dict[str, Any]:
        """What transformers makes of a tensor in the file, by names of the module: arrays or tensors. It may be a part
        of a tensor in `joined`."""
        others = {} if joined is None else joined
        result = self._processor.process(
            weights=weights, name=name, tensor_key_mapping=self._known, parsed_parameters={"tensors": others}
        )
        of_module = self._known.get(result.name)
        if of_module is not None:
            others[of_module] = result.weights
        return others

    def _data(self, stored: _Stored) -> Any:
        count = math.prod(stored.shape)  # a mapping would count as memory of the process
        return np.fromfile(self._file, stored.dtype, count, offset=stored.offset).reshape(stored.shape)

    def _floats(self, stored: _Stored) -> Any:
        from gguf import dequantize

        return dequantize(self._data(stored), stored.kind)

    def form(self, name: str) -> tuple[str, list[int]]:
        return "float32", self._shapes[name]

    def take(self, name: str) -> torch.Tensor:
        made: dict[str, Any] = {}
        for stored in self._stored[name]:
            with wrap_library_errors(InputError, self._place, f"cannot read `{stored.name}` in `{self._called}`"):
                self._processed(self._floats(stored), stored.name, made)
        give_back()  # what blocks took
        return _tensor(made[name])

    def content(self, name: str) -> torch.Tensor | Integers:
        """A tensor, as integers if its blocks hold them and transformers does nothing but order them in another way."""
        floats, stored = self.take(name), self._stored[name][0]
        if len(self._stored[name]) > 1 or len(stored.shape) != 2:
            return floats
        found = gguf_blocks.integers(stored.kind.name, self._data(stored))
        if found is None:
            return floats
        parts = [_tensor(self._processed(part.numpy(), stored.name)[name]) for part in (found.values, found.scales)]
        with contextlib.suppress(ValueError):  # scales of other shapes: transformers has swapped rows and columns
            ordered = Integers(parts[0], parts[1], None, found.bits)
            if torch.equal(ordered.dequantized(), floats):
                return ordered
        return floats


def _tensor(made: Any) -> torch.Tensor:
    return made if isinstance(made, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(made))


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
