"""Reads a tensor that a checkpoint holds in parts. transformers stores some tensors so."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from etbuild.model.tensor_facts import StoredPart
from etbuild.model.tensor_files import TensorFile


class Joined(TensorFile):
    """A tensor of the module that a checkpoint holds in parts. It has the interface of a file with only this tensor.

    Args:
        name: The name of the tensor in the module.
        shape: Its sizes.
        stored: Its parts, each with its file and its name there. All have the same dtype, and are in checked files.
    """

    def __init__(self, name: str, shape: list[int], stored: Sequence[tuple[StoredPart, TensorFile, str]]) -> None:
        super().__init__({name: None})
        self._shape, self._stored = shape, stored

    def form(self, name: str) -> tuple[str, list[int]]:
        """The dtype of the parts, and the shape of the whole."""
        _, file, stored = self._stored[0]
        return file.form(stored)[0], self._shape

    def take(self, name: str) -> torch.Tensor:
        """The tensor, joined from its parts."""
        joined = torch.empty(self._shape, dtype=getattr(torch, self.form(name)[0]))
        for part, file, stored in self._stored:
            part.of(joined).copy_(part.taken_from(file.take(stored)))
        return joined
