"""Computes the parts of a method that depend on no input and on no weight once, such as grids of positions.

ExecuTorch computes them in each call, operator by operator, and no backend takes them. Its own pass would also compute
with weights: a program could then not be bound to other weights. Here, a part begins with constants of the model's code
and with operators without tensors, such as `arange`.

Limit: `constant-parts`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.passes import constant_prop_pass, convert_constant_dim_order_pass
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from etbuild.lower.partition_counts import operator_name
from etbuild.model.tensor_bytes import flat_bytes
from etbuild.patching import replacing
from etbuild.results import GRAPH_NOTES
from etplugins.upstream import idle_operators, shaped_weights, softmax_guards

Values = dict[Node, Any]
"""The value of each constant node: a tensor, or the tensors of an operator with several results."""

_NAMESPACES = {"aten", "dim_order_ops"}
_LARGEST = 1 << 24  # bytes: no larger value is computed
_SHARE = 16  # constants may add this part of the bytes of the weights
_LEAST = 1 << 12  # bytes that they may add to a small method
_normalize = convert_constant_dim_order_pass.convert_constant_dim_order_pass


@replacing(convert_constant_dim_order_pass, "convert_constant_dim_order_pass")
def computed_once(program: ExportedProgram) -> ExportedProgram:
    """The last step in which ExecuTorch makes an edge program. First, it leaves out what need not run in each call."""
    values = _values(program)
    idle_operators.leave_out(program)
    shaped_weights.shape(program)
    softmax_guards.leave_out(program, values)
    left = {*program.graph.nodes}
    values = {node: value for node, value in values.items() if node in left}
    chosen = _chosen(program, values)
    if chosen and program.graph.find_nodes(op="placeholder"):  # ExecuTorch asks an input for its mode
        _put_in_place(program, chosen, values)
    return _normalize(program)


def _values(program: ExportedProgram) -> Values:
    """The values of all nodes that can be computed, in the order of the graph."""
    values: Values = {}
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        if node.op == "placeholder":
            value = program.constants.get(lifted.get(node.name, ""))
            value = getattr(node.meta.get("val"), "constant", None) if value is None else value  # a number of the code
            if type(value) is torch.Tensor:
                values[node] = value
        elif _is_computable(node) and all(each in values for each in node.all_input_nodes):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                value = _of_form(node.target(*args, **kwargs), node.meta["val"])
            if value is not None:
                values[node] = value
    return values


def _is_computable(node: Node) -> bool:
    """Whether an operator gives the same result for the same inputs, of a known size that is not huge."""
    target: Any = node.target._op if isinstance(node.target, EdgeOpOverload) else node.target
    expected = node.meta.get("val")
    results = expected if isinstance(expected, list | tuple) else [expected]
    if node.op != "call_function" or not all(isinstance(each, torch.Tensor) for each in results):
        return False
    if not all(isinstance(size, int) for each in results for size in each.shape):
        return False
    if target is operator.getitem:
        return True
    return (
        isinstance(target, OpOverload)
        and target.namespace in _NAMESPACES
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and "empty" not in target.__name__
        and sum(each.nbytes for each in results) <= _LARGEST
    )


def _of_form(value: Any, expected: Any) -> Any:
    """A result with the dtype, shape and order of elements that the graph expects; None if it has others."""
    if isinstance(value, list | tuple):
        results = [_of_form(each, other) for each, other in zip(value, expected, strict=True)]
        return None if any(each is None for each in results) else results
    if expected.is_contiguous():
        value = value.contiguous()
    forms = [(each.dtype, tuple(each.shape), tuple(each.dim_order())) for each in (value, expected)]
    return value if forms[0] == forms[1] else None


def _chosen(program: ExportedProgram, values: Values) -> set[Node]:
    """The nodes whose values become constants of the program: small ones first, as many as there is room for.

    Where there is no room, the operator stays, and its inputs may become constants.
    """
    tensors = [*program.state_dict.values(), *program.constants.values()]
    room = max(_LEAST, sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor)) // _SHARE)
    order = {node: number for number, node in enumerate(program.graph.nodes)}
    chosen, seen, stored = set[Node](), set[Node](), set[bytes]()
    left = [node for node in values if any(user not in values for user in node.users)]
    while left:
        seen.update(left)
        later: list[Node] = []
        for node in sorted(left, key=lambda each: (_size(values[each]), order[each])):
            if node.op == "placeholder":
                continue
            content = _content(values[node]) if _may_be_constant(node) else None
            cost = 0 if content in stored else _size(values[node])
            if content is None or cost > room:
                later += node.all_input_nodes
                continue
            chosen.add(node)
            stored.add(content)
            room -= cost
        left = [node for node in dict.fromkeys(later) if node not in seen]
    return chosen


def _may_be_constant(node: Node) -> bool:
    """Whether a constant may take the place of a node. A method cannot return one, and none is quantized."""
    return isinstance(node.meta["val"], torch.Tensor) and all(
        isinstance(user.target, EdgeOpOverload | OpOverload) and "quantize" not in str(user.target)
        for user in node.users
    )


def _size(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _content(value: torch.Tensor) -> bytes:
    return f"{value.dtype}{value.shape}".encode() + bytes(flat_bytes(value).numpy())


def _number_again(program: ExportedProgram, constants: Collection[str]) -> None:
    """Gives the numbers of the code that are left the names that ExecuTorch would give them: it counts buffers, and
    would give a name that is in use to a constant of a later pass."""
    buffers = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.BUFFER]
    for number, spec in enumerate(buffers):
        if spec.arg.name in constants and spec.target is not None:
            value = program.state_dict.pop(spec.target)
            spec.target = f"_lifted_tensor_constant{number}"
            program.state_dict[spec.target] = value


def _put_in_place(program: ExportedProgram, chosen: set[Node], values: Values) -> None:
    """Makes constants of nodes, erases the nodes that only they need, and notes both for the description."""
    gone: Values = {}
    for node in reversed(program.graph.nodes):
        if node in values and (node in chosen or all(user in gone for user in node.users)):
            gone[node] = values[node]
    gone = dict(reversed(gone.items()))
    operators = Counter(operator_name(node) for node in gone if node.op != "placeholder")
    constants = {_content(values[node]): _size(values[node]) for node in chosen}
    program._constants = {**program.constants}  # the exported program has the same dictionary
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    specs |= constant_prop_pass.create_constant_nodes_and_return_specs(gone, program)
    placeholders = program.graph.find_nodes(op="placeholder")
    program.graph_signature.input_specs = [specs[node.name] for node in placeholders]
    _number_again(program, {node.name for node in values})
    program.graph_module.recompile()
    noted = {
        "operators": dict(sorted(operators.items())),
        "constants": len(constants),
        "bytes": sum(constants.values()),
    }
    for node in placeholders:  # which of them the description of the graph still has depends on backends
        custom = node.meta.get("custom", {})
        node.meta["custom"] = {**custom, GRAPH_NOTES: {**custom.get(GRAPH_NOTES, {}), "computed": noted}}
