"""Masks that a decoder reads from a table, with a row and a column for each position.

GPT-Neo takes the rows of the last keys. A static cache has keys for all positions, so the right rows are those of the
call's positions.
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
            index: A slice for each dimension. The slice of the rows is as long as the call has tokens.

        Raises:
            BuildError: The index has another form, or the model is not called with a cache.
        """
        slices = isinstance(index, tuple) and all(isinstance(part, slice) and part.step is None for part in index)
        if self.position is None or not slices or len(index) != self.table.dim() or None in (*_ends(index[-2]),):
            raise _unknown()
        first, end = _ends(index[-2])
        rows = self.table[(*index[:-2], slice(None), index[-1])]
        return rows.index_select(-2, torch.arange(end - first) + self.position)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises BuildError: functions of PyTorch may only get rows of the table."""
        raise _unknown()

    def __getattr__(self, name: str) -> Any:
        """A part of the module. Raises BuildError for attributes of tensors, such as `shape`."""
        if hasattr(torch.Tensor, name) and not name.startswith("_"):
            raise _unknown(_UnknownAttribute)
        return super().__getattr__(name)


class _UnknownAttribute(BuildError, AttributeError):
    """An error after which `hasattr` returns False, as for any module."""


def _unknown(kind: type[BuildError] = BuildError) -> BuildError:
    message = "the model reads a table of positions in a way that is not known here"
    return kind.at(_CACHE, message, "leave out `cache`, or write a factory for this model")


def _refuse(self: PositionTable, *args: Any, **kwargs: Any) -> Any:
    """Raises BuildError. Moving and converting a module that has the table does not call this."""
    raise _unknown()


_OPERATORS = ("and", "or", "xor", "add", "sub", "mul", "truediv")
_TENSOR_METHODS = (
    *("to", "type", "float", "half", "double", "bfloat16", "cpu"),
    *("__invert__", "__neg__", *(f"__{side}{operator}__" for side in ("", "r") for operator in _OPERATORS)),
)
for _name in _TENSOR_METHODS:
    setattr(PositionTable, _name, _refuse)


def _ends(index: slice) -> tuple[Any, Any]:
    return index.start, index.stop


def replace(model: Any, length: int) -> None:
    """Replaces the tables of a model that have a row and a column for each position of a cache.

    Args:
        model: The decoder. It is changed in place.
        length: The number of tokens that the cache holds.
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
    """Gives the position of a call to the tables of a model.

    Args:
        model: The decoder.
        position: The position of the call's first token, int64 [1]; None at the end of the call.
    """
    for part in model.modules():
        if isinstance(part, PositionTable):
            part.position = position
