"""Shows the files of a packed checkpoint as if they held its weights, which are unpacked when they are read.

This module has the functions of `PackedCheckpoints` in the core.

A new format needs a function that makes its `Layout` from `quantization_config`, in the table here, and a name in
`formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.foreign_errors import wrap_library_errors
from etbuild.model.tensor_bytes import dtype_name
from etbuild.model.tensor_files import TensorFile
from etbuild.plan.step_plans import ExportPlan
from etbuild.surroundings.memory import give_back
from etplugins.packed import bitsandbytes, compressed_tensors, floats, formats, gptq, kept, torchao
from etplugins.packed.integers import Integers
from etplugins.packed.layout import Layout, Parts

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
"""For each `quant_method`, a function that makes layouts from the `quantization_config` of a checkpoint."""
keep = kept.keep
_CACHE_ENDS = (".k_scale", ".v_scale")  # scales of a cache, which are not read: the manifest decides about the cache
_PATH: DocumentPath = ("model", "huggingface", "config")


@dataclass(frozen=True)
class Packing:
    """The packing of a model's checkpoint.

    Attributes:
        config: `quantization_config` in the configuration of the model.
        dtype: PyTorch's name of the dtype of the model, which its weights have after unpacking.
    """

    config: Mapping[str, Any]
    dtype: str

    @property
    def method(self) -> str:
        """The library or format."""
        return formats.method_of(self.config)

    def facts(self) -> dict[str, object]:
        """The object as JSON values."""
        return {"config": self.config, "dtype": self.dtype}

    def with_weights(self, files: Mapping[str, TensorFile]) -> dict[str, TensorFile]:
        """The files of a checkpoint, with the weights of packed layers in place of their parts.

        Args:
            files: The opened files by name. The parts of a layer may be in several files.

        Raises:
            InputError: The format is not known.
        """
        stored = {name: (file, name) for file in files.values() for name in file.names}
        weights: dict[str, tuple[Layout, Parts]] = {}  # by the name of the part that the weight replaces
        parts = {name for name in stored if name.endswith(_CACHE_ENDS)}
        for layout in _layouts(self):
            for layer in _layers(layout, stored.keys() - parts):
                parts_of_layer = {
                    end: stored[layer + end] for end in (*layout.needed, *layout.optional) if layer + end in stored
                }
                weights[layer + layout.needed[0]] = (layout, Parts(parts_of_layer))
                parts.update(layer + end for end in parts_of_layer)
        return {name: _Unpacked(file, weights, parts, self) if parts else file for name, file in files.items()}


def packing(facts: Mapping[str, Any]) -> Packing:
    """The packing with these facts."""
    return Packing(**facts)


def packing_of(module: torch.nn.Module) -> Packing | None:
    """The packing of a module's checkpoint; None without `quantization_config`, which models of transformers have."""
    config = getattr(getattr(module, "config", None), "quantization_config", None)
    if not isinstance(config, Mapping):
        return None
    return Packing(config, dtype_name(next((parameter.dtype for parameter in module.parameters()), torch.float32)))


def notes(module: torch.nn.Module, export_plan: ExportPlan) -> list[str]:
    """A text for users that says what happens to the packed weights of a module."""
    found, lines = kept.of(module), [*kept.of(module).lines()]
    reads = export_plan.leaves_weights or export_plan.weights
    packed = packing_of(module) if reads and export_plan.model.huggingface is not None else None
    if packed is not None and not lines:
        again = ", and `quantize` quantizes them again" if export_plan.carries_content and not found.kinds else ""
        keeps = "`quantize: {torchao: [{config: packed}, ...]}` keeps the integers that XNNPACK can hold"
        why = "they have no integers that a layer can hold" if found.kinds else keeps
        lines.append(f"packed weights ({packed.method}) are dequantized{again}: {why}")
    return lines


def _layers(layout: Layout, names: Iterable[str]) -> list[str]:
    """The names of the packed layers, without a dot at the end."""
    all_names, first = set(names), layout.needed[0]
    layers = [name.removesuffix(first) for name in all_names if name.endswith(first)]
    return [layer for layer in layers if all(layer + end in all_names for end in layout.needed)]


def _layouts(packing: Packing) -> list[Layout]:
    make = _LAYOUTS.get(packing.method)
    if make is None:
        return []  # other code refuses the checkpoint because of its names
    if unsupported_form := formats.other_form(packing.config):
        raise InputError.at(
            _PATH, f"the checkpoint is packed by {packing.method} with {unsupported_form}", formats.HINT
        )
    return make(packing.config)


class _Unpacked(TensorFile):
    """A file with each packed weight as one tensor, in the place of the first of its stored tensors."""

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
            if isinstance(content, Integers):
                _check_groups(content, self._packing)
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


def _check_groups(integers: Integers, packing: Packing) -> None:
    """Raises ValueError if neighbours share scales in other groups than `quantization_config` says."""
    size, groups = formats.group_size(packing.config), integers.scales.shape[1]
    if size is not None and size > 0 and groups > 1 and integers.group_of is None and integers.group != size:
        raise ValueError(f"{groups} groups of {integers.values.shape[1]} columns are not groups of {size}")


def _unpacking(name: str) -> Any:
    hint = "is the file complete, and `quantization_config` that of this checkpoint?"
    return wrap_library_errors(InputError, ("model", "weights"), f"cannot unpack `{name}`", hint)
