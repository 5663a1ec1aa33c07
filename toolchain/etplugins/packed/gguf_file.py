"""Reads a GGUF file with transformers, which knows llama.cpp's names and layouts for the models of transformers."""

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
from etbuild.model.tensor_files import TensorFile
from etbuild.surroundings.memory import give_back
from etplugins.packed import gguf_blocks, gguf_header
from etplugins.packed.integers import Integers

_SHARED_KEYS = (
    *("model_type", "hidden_size", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "num_experts", "num_experts_per_tok"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rope_theta", "sliding_window"),
)
"""The keys on which the configurations of the module and of the file must agree, because the layout of weights or the
computation depends on them."""


def opened(name: str, file: Path, path: DocumentPath, module: Any) -> TensorFile:
    """Opens a GGUF file. Its tensors have the names of a module, and are dequantized to float32 when they are read.

    Args:
        name: The file's name in the manifest.
        file: The file.
        path: The document path that names it.
        module: A model of transformers.

    Raises:
        InputError: The file is damaged, or of another model.
        BuildError: The package `gguf` is missing.
    """
    _check_header(name, file, path)
    _check_kind(name, path, module)
    # transformers shows progress on standard error
    with wrap_library_errors(InputError, path, f"cannot read `{name}`"), contextlib.redirect_stderr(io.StringIO()):
        gguf = _Gguf(name, file, path, module)
    problems = [Problem(f"`{name}`: {message}", path) for message in _differences(gguf.config, module)]
    hint = "is the configuration that of this file?"
    left_out = gguf.left_out
    problems += [
        Problem(f"`{name}` has `{tensor_name}`, which is not a weight of the module", path, hint)
        for tensor_name in left_out
    ]
    InputError.raise_if(problems)
    return gguf


@dataclass(frozen=True)
class _FileTensor:
    """A tensor in the file.

    Attributes:
        name: Its name in the file.
        kind: The kind of its blocks.
        offset: The position of its first byte in the file.
        shape: The shape of its data.
        dtype: The type of its data: bytes for blocks.
    """

    name: str
    kind: Any
    offset: int
    shape: tuple[int, ...]
    dtype: Any


class _Gguf(TensorFile):
    """A GGUF file, whose tensors are read one by one. For the experts of a mixture, transformers joins several tensors.

    Attributes:
        config: The configuration of the model in the file.
        left_out: The names of weights in the file that transformers does not use.
    """

    def __init__(self, name: str, file: Path, path: DocumentPath, module: Any) -> None:
        from gguf import GGUFReader
        from transformers import modeling_gguf_pytorch_utils as gguf_utils

        self._name, self._file, self._path = name, file, path
        reader = GGUFReader(file)
        self.config: dict[str, Any] = gguf_utils.load_gguf_checkpoint(str(file))["config"]
        [architecture] = gguf_utils.read_field(reader, "general.architecture")
        processor_class = gguf_utils.TENSOR_PROCESSORS.get(architecture, gguf_utils.TensorProcessor)
        self._processor = processor_class(config=self.config)
        self._names_in_module: dict[str, str] = gguf_utils.get_gguf_hf_weights_map(module, self._processor)
        self._stored: dict[str, list[_FileTensor]] = {}
        self._shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
        self.left_out = [tensor.name for tensor in reader.tensors if _is_left_out(tensor.name, self._names_in_module)]
        for tensor in reader.tensors:
            stored = _FileTensor(
                tensor.name, tensor.tensor_type, tensor.data_offset, tensor.data.shape, tensor.data.dtype
            )
            for module_name, shape in self._module_tensors(tensor.name, tensor.shape[::-1]).items():
                self._stored.setdefault(module_name, []).append(stored)
                self._shapes[module_name] = shape
        super().__init__(dict.fromkeys(self._stored))

    def _module_tensors(self, name: str, shape: Any) -> dict[str, list[int]]:
        """The shapes of the module's tensors that get content from a tensor in the file, by their names."""
        if name in self._names_in_module:
            stand_in = np.broadcast_to(np.float32(-1), shape)  # takes no memory
            return {module_name: list(tensor.shape) for module_name, tensor in self._processed(stand_in, name).items()}
        small = np.full((*shape[:1], *(2 for _ in shape[1:])), -1, np.float32)
        return {module_name: self._shapes.get(module_name, []) for module_name in self._processed(small, name)}

    def _processed(self, weights: Any, name: str, joined: dict[str, Any] | None = None) -> dict[str, Any]:
        """The arrays or tensors that transformers makes from a tensor in the file, by their names in the module. If it
        makes a part of a tensor, it writes into the one in `joined`."""
        tensors = {} if joined is None else joined
        result = self._processor.process(
            weights=weights, name=name, tensor_key_mapping=self._names_in_module, parsed_parameters={"tensors": tensors}
        )
        module_name = self._names_in_module.get(result.name)
        if module_name is not None:
            tensors[module_name] = result.weights
        return tensors

    def _data(self, stored: _FileTensor) -> Any:
        count = math.prod(stored.shape)  # not mapped: a mapping counts as memory of the process
        return np.fromfile(self._file, stored.dtype, count, offset=stored.offset).reshape(stored.shape)

    def _floats(self, stored: _FileTensor) -> Any:
        from gguf import dequantize

        return dequantize(self._data(stored), stored.kind)

    def form(self, name: str) -> tuple[str, list[int]]:
        return "float32", self._shapes[name]

    def take(self, name: str) -> torch.Tensor:
        tensors: dict[str, Any] = {}
        for stored in self._stored[name]:
            with wrap_library_errors(InputError, self._path, f"cannot read `{stored.name}` in `{self._name}`"):
                self._processed(self._floats(stored), stored.name, tensors)
        give_back()  # the memory of the blocks
        return _tensor(tensors[name])

    def content(self, name: str) -> torch.Tensor | Integers:
        """A tensor. It is `Integers` if its blocks hold integers and transformers only reorders them."""
        floats, stored = self.take(name), self._stored[name][0]
        if len(self._stored[name]) > 1 or len(stored.shape) != 2:
            return floats
        integers = gguf_blocks.integers(stored.kind.name, self._data(stored))
        if integers is None:
            return floats
        parts = [
            _tensor(self._processed(part.numpy(), stored.name)[name]) for part in (integers.values, integers.scales)
        ]
        with contextlib.suppress(ValueError):  # scales of other shapes: transformers has swapped rows and columns
            ordered = Integers(parts[0], parts[1], None, integers.bits)
            if torch.equal(ordered.dequantized(), floats):
                return ordered
        return floats


def _tensor(array: Any) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(array))


def _check_header(name: str, file: Path, path: DocumentPath) -> None:
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError as error:
        message = f"`{name}` needs the package gguf, which cannot be imported: {error}"
        raise BuildError.at(path, message, install_hint("huggingface", "gguf")) from None
    blocks = {int(kind): (int(elements), int(size)) for kind, (elements, size) in GGML_QUANT_SIZES.items()}
    try:
        with file.open("rb") as opened:
            gguf_header.check(opened, file.stat().st_size, blocks)
    except (OSError, ValueError) as error:
        raise InputError.at(path, f"cannot read `{name}`: {error}") from None


def _check_kind(name: str, path: DocumentPath, module: Any) -> None:
    """Checks that transformers knows the names that weights of the module have in a GGUF file."""
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    try:
        get_gguf_hf_weights_map(module, TensorProcessor())
    except NotImplementedError:  # transformers asks for another release of gguf, which would not help
        kind = module.config.get_text_config(decoder=True).model_type
        hint = "take the same weights as safetensors"
        if kind == "mistral":  # llama.cpp calls such models llama: they differ only in the sliding window
            hint += ", or, without a sliding window, write `config: {file: ..., set: {model_type: llama}}`"
        message = f"`{name}`: transformers reads no weights of a `{kind}` model from GGUF files"
        raise InputError.at(path, message, hint) from None


def _is_left_out(tensor: str, names: Collection[str]) -> bool:
    """Whether a tensor is a weight that transformers leaves out. Two kinds do not count: experts, whose names
    transformers makes itself, and frequencies of rotations, which follow from the configuration."""
    return tensor not in names and "exps" not in tensor and not tensor.startswith("rope_")


def _differences(file_config: dict[str, object], module: Any) -> Iterator[str]:
    """The differences between the configurations of a file and of the module, as sentences."""
    config = module.config.get_text_config(decoder=True)
    rotation = getattr(config, "rope_parameters", None) or {}
    for key in _SHARED_KEYS:
        expected, actual = getattr(config, key, rotation.get(key)), file_config.get(key)
        if None not in (expected, actual) and not _equal(expected, actual):
            yield f"its `{key}` is {actual}, and that of the configuration is {expected}"


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, float) or isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-6)  # the file holds 32 bits
    return bool(first == second)
