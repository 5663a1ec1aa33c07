"""Skips the replay of a graph if the previous pass replayed it and the current pass did not change it.

XNNPACK runs 17 passes over each delegate. All but two end with `ExportPass.call`, which runs the graph on fake tensors,
node by node, into a new graph. This updates shapes and dtypes after a change by the pass. If the pass changed nothing,
the new graph equals the old one.

A graph is unchanged if it has the same nodes in the same order, with the same names, targets, arguments and values.
Passes that work during the replay, by overriding one of its hooks, always replay. `ConstPropPass` is an exception: it
does nothing if every operator of the graph reads a node.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from inspect import getattr_static
from operator import is_
from typing import Any

from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.pass_base import ExportPass, PassResult, _ExportPassBase
from executorch.exir.passes.const_prop_pass import ConstPropPass
from torch.fx import GraphModule

from etbuild.patching import replaced

_HOOKS = sorted(
    name
    for cls in (ExportPass, _ExportPassBase)
    for name, value in vars(cls).items()
    if (callable(value) or isinstance(value, (property, staticmethod))) and name not in ("call", "__init__")
)


@functools.cache
def _replays_alone(pass_class: Any) -> bool:
    """Returns whether the class overrides none of the hooks, so that its replay is like any other."""
    return all(getattr_static(pass_class, hook) is getattr_static(ExportPass, hook) for hook in _HOOKS)


def _reads_nodes_alone(module: GraphModule) -> bool:
    return all(node.op in ("placeholder", "output") or node.all_input_nodes for node in module.graph.nodes)


def content(module: GraphModule) -> list[tuple[Any, ...]]:
    """The nodes of a graph, for `same`."""
    return [
        (node, node.op, node.name, node.target, node.args, node.kwargs, node.meta.get("val"))
        for node in module.graph.nodes
    ]


def same(before: list[tuple[Any, ...]], now: list[tuple[Any, ...]]) -> bool:
    """Compares by identity: arguments are immutable, and a different object counts as different content."""
    return len(before) == len(now) and all(all(map(is_, old, new)) for old, new in zip(before, now, strict=True))


@contextlib.contextmanager
def _within_a_delegate() -> Iterator[None]:
    replay = _ExportPassBase.call
    replayed: weakref.WeakKeyDictionary[GraphModule, list[tuple[Any, ...]]] = weakref.WeakKeyDictionary()

    def call(self: _ExportPassBase, module: GraphModule) -> PassResult:
        pass_class: Any = type(self)
        idle = _replays_alone(pass_class) or (isinstance(self, ConstPropPass) and _reads_nodes_alone(module))
        if idle and module in replayed and same(replayed[module], content(module)):
            return PassResult(module, True)
        result = replay(self, module)
        after = result.graph_module
        if not any(isinstance(child, GraphModule) for child in after.children()):  # branches have their own graphs
            replayed[after] = content(after)
        return result

    with replaced(_ExportPassBase, "call", call):
        yield


@contextlib.contextmanager
def replay_once() -> Iterator[None]:
    """Returns a context manager in which XNNPACK's passes return an unchanged graph without a replay. Passes of other
    backends always replay, because they may rely on other metadata."""
    preprocess = XnnpackBackend.preprocess

    def preprocess_with_fewer_replays(*arguments: Any) -> Any:
        with _within_a_delegate():
            return preprocess(*arguments)

    with replaced(XnnpackBackend, "preprocess", staticmethod(preprocess_with_fewer_replays)):
        yield
