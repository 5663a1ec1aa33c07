"""Shows the files of a packed checkpoint as if they held its weights, which are unpacked when they are read.

A new format needs a function that makes its `Layout` from `quantization_config`, in the table here, and a name in
`formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.foreign_errors import wrap_library_errors
from etbuild.model.packed import bitsandbytes, compressed_tensors, floats, formats, gptq, torchao
from etbuild.model.packed.integers import Integers
from etbuild.model.packed.layout import Layout, Parts
from etbuild.model.packed.packing import Packing
from etbuild.model.tensor_files import TensorFile
from etbuild.surroundings.memory import give_back

_LAYOUTS: Mapping[str, Callable[[Mapping[str, Any]], list[Layout]]] = {
    "awq": lambda _: [gptq.awq()],
    "bitsandbytes": bitsandbytes.layouts,
    "compressed-tensors": compressed_tensors.layouts,
    "fbgemm_fp8": floats.fp8,
    "fp8": floats.fp8,
    "gptq": lambda config: [gptq.gptq(config)],
    "modelopt": floats.modelopt,
    "mxfp4": floats.mxfp4,
    "torchao": torchao.layouts,
}
"""By `quant_method`, a function that makes layouts from `quantization_config` of the checkpoint."""
_CACHE_ENDS = (".k_scale", ".v_scale")  # not read: the manifest decides about the cache
_PATH: DocumentPath = ("model", "huggingface", "config")


def with_weights(files: Mapping[str, TensorFile], packing: Packing) -> dict[str, TensorFile]:
    """The files of a checkpoint, with the weights of packed layers in place of their parts.

    Args:
        files: The opened files by name. The parts of a layer may be in several files.
        packing: How the checkpoint is packed.

    Raises:
        InputError: The format is not known.
    """
    stored = {name: (file, name) for file in files.values() for name in file.names}
    weights: dict[str, tuple[Layout, Parts]] = {}  # by the name of the part that the weight replaces
    parts = {name for name in stored if name.endswith(_CACHE_ENDS)}
    for layout in _layouts(packing):
        for layer in _layers(layout, stored.keys() - parts):
            parts_of_layer = {
                end: stored[layer + end] for end in (*layout.needed, *layout.optional) if layer + end in stored
            }
            weights[layer + layout.needed[0]] = (layout, Parts(parts_of_layer))
            parts.update(layer + end for end in parts_of_layer)
    return {name: _Unpacked(file, weights, parts, packing) if parts else file for name, file in files.items()}


def _layers(layout: Layout, names: Iterable[str]) -> list[str]:
    """The names of the packed layers, without a dot at the end."""
    all_names, first = set(names), layout.needed[0]
    layers = [name.removesuffix(first) for name in all_names if name.endswith(first)]
    return [layer for layer in layers if all(layer + end in all_names for end in layout.needed)]


def _layouts(packing: Packing) -> list[Layout]:
    make = _LAYOUTS.get(packing.method)
    if make is None:
        return []  # the checkpoint is refused because of its names
    if unsupported_form := formats.other_form(packing.config):
        raise InputError.at(
            _PATH, f"the checkpoint is packed by {packing.method} with {unsupported_form}", formats.HINT
        )
    return make(packing.config)


class _Unpacked(TensorFile):
    """A file in which each weight replaces its first part, and other parts are hidden."""

    def __init__(
        self, file: TensorFile, weights: Mapping[str, tuple[Layout, Parts]], parts: set[str], packing: Packing
    ) -> None:
        self._file, self._packing = file, packing
        self._weights: dict[str, tuple[Layout, Parts]] = {}
        self.names = []
        for name in file.names:
            if name in weights:
                layout, parts_of_layer = weights[name]
                weight = name.removesuffix(layout.needed[0]) + layout.weight
                self._weights[weight] = layout, parts_of_layer
                self.names.append(weight)
            elif name not in parts:
                self.names.append(name)

    def check(self, names: Iterable[str]) -> None:
        self._file.check(name for name in names if name not in self._weights)

    def form(self, name: str) -> tuple[str, list[int]]:
        if name not in self._weights:
            return self._file.form(name)
        layout, parts = self._weights[name]
        with _unpacking(name):
            return self._packing.dtype, layout.shape(parts)

    def content(self, name: str) -> Integers | torch.Tensor:
        if name not in self._weights:
            return self._file.take(name)
        layout, parts = self._weights[name]
        with _unpacking(name):
            expected = layout.shape(parts)
            _check_not_empty(parts, expected, self._packing)
            content = layout.read(parts)
            actual = list(content.values.shape if isinstance(content, Integers) else content.shape)
            if actual != expected:
                raise ValueError(f"its parts make {actual}, and not {expected}")
        give_back()  # the memory that unpacking took
        return content

    def take(self, name: str) -> torch.Tensor:
        content = self.content(name)
        return content.dequantized() if isinstance(content, Integers) else content


def _check_not_empty(parts: Parts, shape: list[int], packing: Packing) -> None:
    """Raises ValueError if a part is empty: some libraries write no scales for a group that is wider than the layer."""
    empty = next((end for end in parts if 0 in parts.form(end)[1]), None)
    if empty is not None and 0 not in shape:
        size = formats.group_size(packing.config)
        group = "" if size is None else f", and a group has {size}"
        raise ValueError(f"`{empty}` is empty: the layer has {shape[-1]} columns{group}")


def _unpacking(name: str) -> Any:
    hint = "is the file complete, and `quantization_config` that of this checkpoint?"
    return wrap_library_errors(InputError, ("model", "weights"), f"cannot unpack `{name}`", hint)
