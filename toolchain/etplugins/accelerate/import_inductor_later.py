"""Imports ExecuTorch without TorchInductor. ExecuTorch needs it only for nodes that most programs do not have.

`executorch.exir` imports `torch.export._remove_auto_functionalized_pass`. That imports
`torch._inductor.fx_passes.post_grad` for one function, and with it most of Inductor. This takes a second at every
start. The function decomposes calls of `auto_functionalized`, which come from custom operators that write to their
arguments. It does nothing for a graph without such calls.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

from etbuild.patching import imported_later

_MODULE, _FUNCTION = "torch._inductor.fx_passes.post_grad", "decompose_auto_functionalized"


def _decompose_auto_functionalized(graph: Any) -> None:
    from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2

    if any(node.target in (auto_functionalized, auto_functionalized_v2) for node in graph.nodes):
        getattr(importlib.import_module(_MODULE), _FUNCTION)(graph)


def import_inductor_later() -> AbstractContextManager[None]:
    """Returns a context manager in which imports get a stand-in with the one function instead of the real module. It
    does nothing if the module is already imported."""
    return imported_later(_MODULE, _FUNCTION, _decompose_auto_functionalized)
