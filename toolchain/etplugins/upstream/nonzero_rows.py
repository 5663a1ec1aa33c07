"""Gives the result of `nonzero` the layout in which ExecuTorch's kernel writes it: row by row.

In PyTorch, the result has column-major strides, and ExecuTorch notes their order in the program. But its kernel writes
row by row. So the indices of several dimensions are in wrong places, and most kernels refuse such a tensor.

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
    """Returns a context manager. Graphs that are traced again in it have row-major results of `nonzero`."""
    original = op_implementations_dict[_NONZERO]

    def in_rows(mode: Any, function: Any, given: Any) -> Any:
        found = original(mode, function, given)
        return found.new_empty(found.shape)

    op_implementations_dict[_NONZERO] = in_rows
    try:
        yield
    finally:
        op_implementations_dict[_NONZERO] = original
