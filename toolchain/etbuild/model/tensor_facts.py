"""Facts about the parameters and buffers of methods for the steps, without their content."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

Recipe = dict[str, Any]
"""How the content of a tensor is computed from a weight in the weights files, as JSON data. `weight` is the name of the
weight in the module. Without other keys, the tensor is the weight. `quantize.deferred` makes the other keys."""


@dataclass(frozen=True)
class StoredPart:
    """A file's tensor, or a slice of it, that is a tensor of the module or a part of one.

    Attributes:
        name: Its name in the file.
        shape: Its sizes.
        strides: For each dimension, the elements of the module's tensor from one index to the next.
        offset: The place of its first element in the module's tensor, which is row-major.
        slice: For a slice of the file's tensor: the dimension, the index of the beginning, and the size of the whole
            dimension. None for the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    slice: tuple[int, int, int] | None = None

    def facts(self) -> dict[str, Any]:
        """Its fields as JSON data, which `from_facts` accepts."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> StoredPart:
        """Makes the object from what `facts` returned."""
        piece = facts.get("slice")
        place = None if piece is None else (piece[0], piece[1], piece[2])
        return cls(facts["name"], tuple(facts["shape"]), tuple(facts["strides"]), facts["offset"], place)

    @property
    def shape_in_file(self) -> list[int]:
        """The sizes of the file's tensor."""
        sizes = list(self.shape)
        if self.slice is not None:
            sizes[self.slice[0]] = self.slice[2]
        return sizes

    def taken_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of its part of the file's tensor."""
        if self.slice is None:
            return tensor
        dim, start, _ = self.slice
        return tensor.narrow(dim, start, self.shape[dim])

    def is_whole(self, shape: list[int]) -> bool:
        """Whether it is the whole of a tensor with these sizes, and the whole of the file's tensor."""
        return self.slice is None and (self.shape, self.strides, self.offset) == (
            tuple(shape),
            torch.empty(shape, device="meta").stride(),
            0,
        )

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of this part of the module's tensor."""
        return tensor.as_strided(self.shape, self.strides, self.offset)


@dataclass(frozen=True)
class TensorFacts:
    """Facts about a parameter or buffer, without its content.

    Attributes:
        name: Its name in the module.
        dtype: PyTorch's name of its dtype, such as `float32`.
        shape: Its sizes.
        parameter: Whether it is a parameter; otherwise it is a buffer.
        same_as: If the tensor has several names and this is not the first one: the first name; otherwise None.
        in_weights: Whether its content comes from weights files; otherwise the factory made it.
        also: Other names by which a pattern finds it, such as the name of the parameter that it was quantized from.
        stored_as: The tensors of a file that hold its content, if transformers stores it in another form. If its
            content does not come from files: the tensor that a file may have, and that transformers does not read.
        computed: How its content is computed from a weight; None if it is not.
    """

    name: str
    dtype: str
    shape: list[int]
    parameter: bool
    same_as: str | None
    in_weights: bool
    also: list[str] = field(default_factory=list)
    stored_as: list[StoredPart] = field(default_factory=list)
    computed: Recipe | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"

    @property
    def nbytes(self) -> int:
        """The size of its content in bytes."""
        return int(torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize)

    def facts(self) -> dict[str, object]:
        """The facts as JSON data, which `from_facts` accepts."""
        left_out: dict[str, object] = {"stored_as": [], "computed": None}
        fields = {**asdict(self), "stored_as": [part.facts() for part in self.stored_as]}
        return {key: value for key, value in fields.items() if key not in left_out or value != left_out[key]}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> TensorFacts:
        """Makes the object from what `facts` returned."""
        return cls(**{**facts, "stored_as": [StoredPart.from_facts(part) for part in facts.get("stored_as", [])]})


def first_name(entry: TensorFacts) -> str:
    """The first name of a tensor. It is the same for all its names."""
    return entry.same_as or entry.name


def original_name(name: str, methods: Collection[str]) -> str:
    """The name that a tensor had before `rename_differing`.

    Args:
        name: The name of the tensor.
        methods: The names of all methods.
    """
    original, _, method = name.rpartition("@")
    return original if method in methods else name
