"""Imports ExecuTorch without TorchInductor, which it needs only for a kind of node that most programs do not have.

`executorch.exir` imports `torch.export._remove_auto_functionalized_pass`. That imports
`torch._inductor.fx_passes.post_grad` for one function, and with it most of Inductor, which takes a second at every
start. The function decomposes calls of `auto_functionalized`, which custom operators that write to their arguments
leave in a graph. It does nothing for a graph without such calls.
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
    """Takes the place of the module and has its one function. Any other attribute imports the real module."""

    decompose_auto_functionalized = staticmethod(_decompose_auto_functionalized)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks every module for its file
            raise AttributeError(name)
        if sys.modules.get(_MODULE) is self:
            del sys.modules[_MODULE]
        return getattr(importlib.import_module(_MODULE), name)


@contextlib.contextmanager
def import_inductor_later() -> Iterator[None]:
    """Returns a context manager in which imports get a stand-in with the one function, not the real module. It does
    nothing if the module is already imported."""
    stand_in = _StandIn(_MODULE)
    if sys.modules.setdefault(_MODULE, stand_in) is not stand_in:
        yield
        return
    try:
        yield
    finally:
        if sys.modules.get(_MODULE) is stand_in:
            del sys.modules[_MODULE]
