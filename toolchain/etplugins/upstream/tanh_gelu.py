"""Writes out GELU's tanh form, for backends that silently compute the exact form instead.

The two differ by up to 0.0005. Gemma, SigLIP and others use the tanh form (`gelu_pytorch_tanh` of transformers).

Limit: `tanh-gelu`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch.export import ExportedProgram

from etplugins.upstream import graph_changes
from etplugins.upstream.graph_changes import Add, Writer

_ATEN = torch.ops.aten


def write_out(program: ExportedProgram, dtypes: Collection[str] = ("float32",)) -> None:
    """Replaces GELU's tanh form by multiplications, additions and tanh.

    Args:
        program: The method. It is changed in place.
        dtypes: The dtypes in which backends take the form, by PyTorch's names: only there it is replaced.
    """
    wanted = {getattr(torch, name) for name in dtypes}

    def writer(node: torch.fx.Node) -> Writer | None:
        if node.target is not _ATEN.gelu.default or node.kwargs.get("approximate") != "tanh":
            return None
        return _gelu if getattr(node.meta.get("val"), "dtype", None) in wanted else None

    graph_changes.write(program, writer)


def _gelu(add: Add, given: Any, *, approximate: str) -> Any:
    """`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`, in float32 and in the order of PyTorch's kernel."""
    del approximate
    dtype = given.meta["val"].dtype
    x = given if dtype is torch.float32 else add(_ATEN.to.dtype, given, torch.float32)
    cube = add(_ATEN.mul.Tensor, add(_ATEN.mul.Tensor, x, x), x)
    inner = add(_ATEN.add.Tensor, x, add(_ATEN.mul.Tensor, cube, 0.044715))
    tanh = add(_ATEN.tanh.default, add(_ATEN.mul.Tensor, inner, math.sqrt(2 / math.pi)))
    found = add(_ATEN.mul.Tensor, add(_ATEN.mul.Tensor, x, 0.5), add(_ATEN.add.Tensor, tanh, 1.0))
    return found if dtype is torch.float32 else add(_ATEN.to.dtype, found, dtype)
