"""Computes functions of elements of constants that ExecuTorch cannot lower and PyTorch cannot decompose.

Such a result follows from the model's code and configuration, as the quantile of a share of zeros: it becomes a number.

Limit: `functions-of-constants`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions

from etplugins.upstream import missing_operators
from etplugins.upstream.graph_changes import Add, change_graphs, write

_MOST = 4096  # elements; a larger constant is one of the weights
_DETACH = torch.ops.aten.detach_.default  # on a constant, it does nothing


def compute(program: ExportedProgram) -> None:
    """Replaces these operators by the numbers that they compute, where all elements are the same number.

    Args:
        program: The method. It is changed in place.
    """
    constants = {
        name: program.constants[target]
        for name, target in program.graph_signature.inputs_to_lifted_tensor_constants.items()
        if isinstance(program.constants.get(target), torch.Tensor)
    }
    values: dict[torch.fx.Node, torch.Tensor] = {}
    numbers: dict[torch.fx.Node, float] = {}
    for node in program.graph.nodes:
        if _writes(node):
            _forget(values, node)
        value = constants.get(node.name) if node.op == "placeholder" else _value(node, values)
        if value is not None and value.numel() <= _MOST:
            values[node] = value
            if node.op == "call_function" and _is_missing(node) and (number := _number(value)) is not None:
                numbers[node] = number
    if numbers:
        write(program, lambda node: functools.partial(_full, node, numbers[node]) if node in numbers else None)
        change_graphs(program, _drop)


def _full(node: torch.fx.Node, number: float, add: Add, *_: Any, **__: Any) -> Any:
    value = node.meta["val"]
    return add(torch.ops.aten.full.default, list(value.shape), number, dtype=value.dtype)


def _drop(graph: torch.fx.Graph) -> bool:
    graph.eliminate_dead_code()
    return True


def _is_missing(node: torch.fx.Node) -> bool:
    """Whether nothing decomposes a function of elements, and it is not one of core ATen."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.pointwise in target.tags
        and torch.Tag.core not in target.tags
        and target not in _decomposed()
        and not target._can_decompose()
        and missing_operators.writer(node) is None
    )


@functools.cache
def _decomposed() -> frozenset[Any]:
    return frozenset(default_decompositions())


def _number(value: torch.Tensor) -> float | None:
    """The number that all elements of a result are; None if they differ."""
    if not value.is_floating_point() or not value.numel():
        return None
    first: float = value.flatten()[0].item()
    return first if bool((value == first).all()) else None


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable) and node.target is not _DETACH


def _forget(values: dict[torch.fx.Node, torch.Tensor], written: torch.fx.Node) -> None:
    """Forgets the values that share memory with an input of a node that writes."""
    places = {values[each].untyped_storage().data_ptr() for each in written.all_input_nodes if each in values}
    for node in [node for node, value in values.items() if value.untyped_storage().data_ptr() in places]:
        del values[node]


def _value(node: torch.fx.Node, values: dict[torch.fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The result of a node that reads only constants; None for others. `values` has those of the nodes before."""
    schema, inputs = getattr(node.target, "_schema", None), node.all_input_nodes
    if (
        schema is None
        or not inputs
        or torch.Tag.nondeterministic_seeded in node.target.tags
        or not all(each in values for each in inputs)
    ):
        return None
    if node.target is _DETACH:
        return values[inputs[0]]
    if schema.is_mutable:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        found = node.target(*args, **kwargs)
    return found if isinstance(found, torch.Tensor) else None
