"""Imports ExecuTorch without TorchInductor, which it needs for one kind of node that most programs do not have.

`executorch.exir` imports `torch.export._remove_auto_functionalized_pass`, and that imports
`torch._inductor.fx_passes.post_grad` for one function, and with it most of Inductor: a second of every start. The
function takes calls of `auto_functionalized` apart, which custom operators that write to their arguments leave in a
graph. In a graph without them it finds nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_MODULE = "torch._inductor.fx_passes.post_grad"


def _decompose_auto_functionalized(graph: Any) -> None:
    from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2

    if any(node.target in (auto_functionalized, auto_functionalized_v2) for node in graph.nodes):
        importlib.import_module(_MODULE).decompose_auto_functionalized(graph)


class _StandIn(ModuleType):
    """Has the one function; asked for anything else, it makes way for the module."""

    decompose_auto_functionalized = staticmethod(_decompose_auto_functionalized)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks every module for its file
            raise AttributeError(name)
        if sys.modules.get(_MODULE) is self:
            del sys.modules[_MODULE]
        return getattr(importlib.import_module(_MODULE), name)


@contextlib.contextmanager
def import_inductor_later() -> Iterator[None]:
    """What is imported inside gets the function by itself. Nothing happens where the module has been imported."""
    stand_in = _StandIn(_MODULE)
    if sys.modules.setdefault(_MODULE, stand_in) is not stand_in:
        yield
        return
    try:
        yield
    finally:
        if sys.modules.get(_MODULE) is stand_in:
            del sys.modules[_MODULE]
