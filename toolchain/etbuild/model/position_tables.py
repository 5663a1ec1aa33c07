"""Masks that a decoder reads from a table, with a row and a column for each position.

GPT-Neo finds the rows of a call from the number of keys: those of the last tokens. A static cache has keys for all
positions, so that the rows are those of the call's positions.
"""

from __future__ import annotations

from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath

_CACHE: DocumentPath = ("model", "huggingface", "cache")


class PositionTable(torch.nn.Module):  # type: ignore[misc]
    """A square table of booleans, [..., positions, positions], in place of a buffer.

    Attributes:
        position: The position of the first token of the call, int64 [1]; None between calls.
    """

    table: torch.Tensor
    position: torch.Tensor | None

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.position = None

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The rows of the call's tokens, [..., seq, columns].

        Args:
            index: A slice for each dimension. The one of the rows has as many as the call has tokens.

        Raises:
            BuildError: It is another index, or the model is not called with a cache.
        """
        slices = isinstance(index, tuple) and all(isinstance(each, slice) and each.step is None for each in index)
        if self.position is None or not slices or len(index) != self.table.dim() or None in (*_ends(index[-2]),):
            raise _unknown()
        first, end = _ends(index[-2])
        rows = self.table[(*index[:-2], slice(None), index[-1])]
        return rows.index_select(-2, torch.arange(end - first) + self.position)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises BuildError: a function of PyTorch gets the table itself, not rows of it."""
        raise _unknown()

    def __getattr__(self, name: str) -> Any:
        """A part of the module. Raises BuildError for what only a tensor has, such as `shape`."""
        if hasattr(torch.Tensor, name) and not name.startswith("_"):
            raise _unknown(_UnknownAttribute)
        return super().__getattr__(name)


class _UnknownAttribute(BuildError, AttributeError):
    """Lets `hasattr` answer, as for any module."""


def _unknown(kind: type[BuildError] = BuildError) -> BuildError:
    message = "the model reads a table of positions in a way that is not known here"
    return kind.at(_CACHE, message, "leave out `cache`, or write a factory for this model")


def _refuse(self: PositionTable, *args: Any, **kwargs: Any) -> Any:
    """Raises BuildError. Modules that have the table are moved and converted without a call of this."""
    raise _unknown()


_OPERATORS = ("and", "or", "xor", "add", "sub", "mul", "truediv")
_OF_TENSORS = (
    *("to", "type", "float", "half", "double", "bfloat16", "cpu"),
    *("__invert__", "__neg__", *(f"__{side}{each}__" for side in ("", "r") for each in _OPERATORS)),
)
for _name in _OF_TENSORS:
    setattr(PositionTable, _name, _refuse)


def _ends(index: slice) -> tuple[Any, Any]:
    return index.start, index.stop


def replace(model: Any, length: int) -> None:
    """Replaces the tables of a model that have each position of a cache.

    Args:
        model: The decoder. It is changed in place.
        length: The number of tokens that its cache holds.
    """
    for part in [*model.modules()]:
        for name, buffer in [*part.named_buffers(recurse=False)]:
            if _is_table(buffer, length) and name in part._non_persistent_buffers_set:
                delattr(part, name)
                setattr(part, name, PositionTable(buffer))


def _is_table(buffer: torch.Tensor, length: int) -> bool:
    sizes = buffer.shape[-2:]
    return buffer.dtype == torch.bool and buffer.dim() > 1 and bool(sizes[0] == sizes[1] >= length)


def begin(model: Any, position: torch.Tensor | None) -> None:
    """Tells the tables of a model where a call begins.

    Args:
        model: The decoder.
        position: The position of its first token, int64 [1]; None at the end of the call.
    """
    for part in model.modules():
        if isinstance(part, PositionTable):
            part.position = position
