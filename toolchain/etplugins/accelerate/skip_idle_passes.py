"""Skips passes over a method that would change nothing.

Before operators become those of the edge dialect, ExecuTorch runs five passes over the whole method. Each replays it on
fake tensors, node by node, into a new graph. The first makes a graph that another replay would not change. So the next
ones are skipped if the graph is still the same and has nothing that they look for.

Graphs with symbolic sizes or with branches are replayed by all passes.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from executorch.exir.pass_base import ExportPass, PassResult, _ExportPassBase
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node

from etbuild.patching import replaced
from etplugins.accelerate.replay_once import content, same

_PROMOTED = {
    torch.ops.aten.add.Tensor,
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.sub.Tensor,
    torch.ops.aten.div.Tensor,
    torch.ops.aten.div.Tensor_mode,
    torch.ops.aten.minimum.default,
}
"""What `RemoveMixedTypeOperators` looks at."""


def _has_scalar_for_a_tensor(node: Node) -> bool:
    """Whether an argument is a number where the operator takes a tensor."""
    parameters: Any = node.target._schema.arguments
    named = [(each, node.kwargs[each.name]) for each in parameters if each.name in node.kwargs]
    return any(
        isinstance(value, (bool, int, float)) and isinstance(parameter.type, torch.TensorType)
        for parameter, value in [*zip(parameters, node.args, strict=False), *named]
    )


def _may_be_promoted(node: Node) -> bool:
    """Whether an operator with several arguments may compute with another dtype than that of its arguments."""
    values: list[Any] = [argument.meta.get("val") if isinstance(argument, Node) else None for argument in node.args]
    if len(values) < 2:
        return False
    if not all(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values):
        return True
    return len({value.dtype for value in values}) > 1


# For each pass, whether it may change a call of an operator in a graph without symbolic sizes.
_CHANGES: dict[type[ExportPass], Callable[[Node], bool]] = {
    NormalizeTransposePass: lambda node: node.target is torch.ops.aten.t.default,
    ReplaceBrokenOpsWithFunctionalOpsPass: lambda node: node.target.is_view,
    ScalarToTensorPass: _has_scalar_for_a_tensor,
    SymToTensorPass: lambda node: False,
    RemoveMixedTypeOperators: lambda node: node.target in _PROMOTED and _may_be_promoted(node),
}


@contextlib.contextmanager
def skip_idle_passes() -> Iterator[None]:
    """Returns a context manager in which passes of ExecuTorch are skipped for methods that they would not change."""
    replay = _ExportPassBase.call
    replayed: weakref.WeakKeyDictionary[GraphModule, list[tuple[Any, ...]]] = weakref.WeakKeyDictionary()

    def call(self: _ExportPassBase, module: GraphModule) -> PassResult:
        changes = _CHANGES.get(type(self))
        if changes is None:
            return replay(self, module)
        if module in replayed and same(replayed[module], content(module)) and not _any(changes, module):
            return PassResult(module, True)
        result = replay(self, module)
        if _is_plain(result.graph_module):
            replayed[result.graph_module] = content(result.graph_module)
        return result

    with replaced(_ExportPassBase, "call", call):
        yield


def _any(changes: Callable[[Node], bool], module: GraphModule) -> bool:
    calls = (node for node in module.graph.nodes if node.target is not operator.getitem)
    return any(changes(node) for node in calls if node.op == "call_function")


def _is_plain(module: GraphModule) -> bool:
    """Whether another replay gives the same graph: it has only operators of PyTorch, and sizes are numbers."""
    return all(_is_plain_node(node) for node in module.graph.nodes)


def _is_plain_node(node: Node) -> bool:
    if node.op == "call_function":
        if not isinstance(node.target, OpOverload) and node.target is not operator.getitem:
            return False
    elif node.op not in ("placeholder", "output"):
        return False
    values = node.meta.get("val")
    return node.op == "output" or all(
        isinstance(value, FakeTensor) and value.constant is None and not value._has_symbolic_sizes_strides
        for value in (values if isinstance(values, (tuple, list)) else [values])
    )
