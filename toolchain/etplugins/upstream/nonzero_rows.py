"""Lays the result of `nonzero` out in rows, as ExecuTorch's kernel writes it.

In PyTorch the result has column-major strides, and ExecuTorch notes their order in the program. But its kernel writes
row by row, so that the indices of several dimensions are in wrong places, and most kernels refuse such a tensor.

Limit: `nonzero`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict

_NONZERO = torch.ops.aten.nonzero.default


@contextlib.contextmanager
def row_major() -> Iterator[None]:
    """Returns a context manager in which graphs that are traced again have row-major results of `nonzero`."""
    original = op_implementations_dict[_NONZERO]

    def in_rows(mode: Any, function: Any, given: Any) -> Any:
        found = original(mode, function, given)
        return found.new_empty(found.shape)

    op_implementations_dict[_NONZERO] = in_rows
    try:
        yield
    finally:
        op_implementations_dict[_NONZERO] = original
