"""The layout of a weight that a library stores in several tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from etbuild.model.stored_tensors import LazyTensors
from etbuild.model.tensor_files import TensorFile
from etplugins.packed.integers import Integers


class Parts(LazyTensors):
    """The stored tensors of one layer, by the ends of their names. Each access reads a tensor.

    Args:
        stored: The file and the name of the tensor in the file, by the end of the name.
    """

    _entries: Mapping[str, tuple[TensorFile, str]]

    def __init__(self, stored: Mapping[str, tuple[TensorFile, str]]) -> None:
        self._entries = stored

    def __getitem__(self, end: str) -> torch.Tensor:
        file, name = self._entries[end]
        return file.take(name)

    def form(self, end: str) -> tuple[str, list[int]]:
        """The dtype and the shape of a tensor."""
        file, name = self._entries[end]
        return file.form(name)


@dataclass(frozen=True)
class Layout:
    """The layout of the weight of a packed layer.

    Attributes:
        needed: The ends of the names of the tensors that each packed layer has. The first one identifies the layout.
        shape: Returns the shape of the weight.
        read: Returns the weight as integers or floats.
        optional: The ends of the names of tensors that a layer may have. Those for activations are not read.
        weight: The end of the name of the weight itself.
    """

    needed: tuple[str, ...]
    shape: Callable[[Parts], list[int]]
    read: Callable[[Parts], Integers | torch.Tensor]
    optional: tuple[str, ...] = ()
    weight: str = ".weight"
