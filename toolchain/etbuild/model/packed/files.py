"""Shows the files of a packed checkpoint as if they held its weights. Each weight is made of its parts when it is read.

A new format is a function that makes its `Layout` of `quantization_config`, in the table here, and a name in `formats`.
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
from etbuild.processes.memory import give_back

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
"""What makes the layouts of each `quant_method`, of `quantization_config` of the checkpoint."""
_OF_CACHES = (".k_scale", ".v_scale")  # the cache of a program is as the manifest says
_PLACE: DocumentPath = ("model", "huggingface", "config")


def with_weights(files: Mapping[str, TensorFile], packing: Packing) -> dict[str, TensorFile]:
    """The files of a checkpoint, with the weights of packed layers in place of their parts.

    Args:
        files: The opened files by name. The parts of a layer may be in several.
        packing: How it is packed.

    Raises:
        InputError: The format is not known.
    """
    place = {name: (file, name) for file in files.values() for name in file.names}
    found: dict[str, tuple[Layout, Parts]] = {}  # by the name of the tensor in whose place the weight stands
    parts = {name for name in place if name.endswith(_OF_CACHES)}
    for layout in _layouts(packing):
        for layer in _layers(layout, place.keys() - parts):
            own = {end: place[layer + end] for end in (*layout.needed, *layout.optional) if layer + end in place}
            found[layer + layout.needed[0]] = (layout, Parts(own))
            parts.update(layer + end for end in own)
    return {name: _Unpacked(file, found, parts, packing) if parts else file for name, file in files.items()}


def _layers(layout: Layout, names: Iterable[str]) -> list[str]:
    """The packed layers, without a dot at the end."""
    known, first = set(names), layout.needed[0]
    layers = [name.removesuffix(first) for name in known if name.endswith(first)]
    return [layer for layer in layers if all(layer + end in known for end in layout.needed)]


def _layouts(packing: Packing) -> list[Layout]:
    make = _LAYOUTS.get(packing.method)
    if make is None:
        return []  # its names are refused
    if other := formats.other_form(packing.config):
        raise InputError.at(_PLACE, f"the checkpoint is packed by {packing.method} with {other}", formats.HINT)
    return make(packing.config)


class _Unpacked(TensorFile):
    """A file with weights in place of the first of their parts."""

    def __init__(
        self, file: TensorFile, weights: Mapping[str, tuple[Layout, Parts]], parts: set[str], packing: Packing
    ) -> None:
        self._file, self._packing = file, packing
        self._weights: dict[str, tuple[Layout, Parts]] = {}
        self.names = []
        for name in file.names:
            if name in weights:
                layout, of_layer = weights[name]
                weight = name.removesuffix(layout.needed[0]) + layout.weight
                self._weights[weight] = layout, of_layer
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
            wanted = layout.shape(parts)
            _check_not_empty(parts, wanted, self._packing)
            content = layout.read(parts)
            found = list(content.values.shape if isinstance(content, Integers) else content.shape)
            if found != wanted:
                raise ValueError(f"its parts make {found}, and not {wanted}")
        give_back()  # what unpacking took
        return content

    def take(self, name: str) -> torch.Tensor:
        content = self.content(name)
        return content.dequantized() if isinstance(content, Integers) else content


def _check_not_empty(parts: Parts, shape: list[int], packing: Packing) -> None:
    """Raises ValueError if a part has no numbers: some libraries write no scales if a group has more columns than the
    layer."""
    empty = next((end for end in parts if 0 in parts.form(end)[1]), None)
    if empty is not None and 0 not in shape:
        size = formats.group_size(packing.config)
        group = "" if size is None else f", and a group has {size}"
        raise ValueError(f"`{empty}` is empty: the layer has {shape[-1]} columns{group}")


def _unpacking(name: str) -> Any:
    hint = "is the file complete, and `quantization_config` that of this checkpoint?"
    return wrap_library_errors(InputError, ("model", "weights"), f"cannot unpack `{name}`", hint)
