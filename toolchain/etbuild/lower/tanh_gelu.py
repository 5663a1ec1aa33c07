"""Writes out GELU's tanh form, for backends that compute the exact form instead and say nothing.

The two differ by up to 0.0005. Gemma, SigLIP and others use the tanh form (`gelu_pytorch_tanh` of transformers).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.export import core_operators

_ATEN = torch.ops.aten


def write_out(program: ExportedProgram) -> None:
    """Replaces GELU's tanh form by multiplications, additions and tanh. The method is changed in place.

    Leaves it in other dtypes than float32: the kernel computes those in float32, and XNNPACK does not take them.
    """
    core_operators.write(program, _writer)


def _writer(node: torch.fx.Node) -> core_operators.Writer | None:
    if node.target is not _ATEN.gelu.default or node.kwargs.get("approximate") != "tanh":
        return None
    return _gelu if node.meta["val"].dtype is torch.float32 else None


def _gelu(add: core_operators.Add, x: Any, *, approximate: str) -> Any:
    """`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`, in the order in which PyTorch computes it."""
    del approximate
    cube = add(_ATEN.mul.Tensor, add(_ATEN.mul.Tensor, x, x), x)
    inner = add(_ATEN.add.Tensor, x, add(_ATEN.mul.Tensor, cube, 0.044715))
    tanh = add(_ATEN.tanh.default, add(_ATEN.mul.Tensor, inner, math.sqrt(2 / math.pi)))
    return add(_ATEN.mul.Tensor, add(_ATEN.mul.Tensor, x, 0.5), add(_ATEN.add.Tensor, tanh, 1.0))
