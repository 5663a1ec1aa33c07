"""Copies results of `torch.cond` that would be overwritten, and checks the memory plans of branches and loops.

A program does not write the result of a `cond` to its planned place: the result is the tensor of the branch that ran.
All branches and loops of a graph use the same memory, so the next one overwrites it. And a view of the result shows the
planned place, to which nothing writes. After a copy, the result is in its planned place.

The joined results of a loop's rounds grow in place with each round, and ExecuTorch emits no view of them.

Limits: `overwritten-branches`, `views-of-branches`, `views-of-loops`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from executorch.exir import memory
from executorch.exir.dialects._ops import ops
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils import _pytree as pytree

from etbuild.errors import BuildError

_COND, _MAP, _SCAN = torch.ops.higher_order.cond, torch.ops.higher_order.map_impl, torch.ops.higher_order.scan
_CONTROL_FLOW = (_COND, _MAP, _SCAN)
_VIEWS = (ops.edge.aten.view_copy.default, memory.view)
_HINT = "the memory of branches and loops is `graph_module.input_mem_buffer_sizes`: plan other tensors after it"


def copies(*, outputs: bool) -> Callable[[GraphModule], PassResult]:
    """A pass of `to_executorch` that copies each result of a `cond` that may be overwritten while it is needed.

    Args:
        outputs: Whether results of the method are copied too. They must be in their place if the application provides
            it.
    """

    def copy(graph_module: GraphModule) -> PassResult:
        wanted = [
            (node, result)
            for module in _graph_modules(graph_module)
            for node in module.graph.nodes
            if node.target in _CONTROL_FLOW
            for result in node.users
            if _needs_copy(module, node, result)
            or (outputs and module is graph_module and _is_of_branch(result) and _is_returned(result))
        ]
        for node, result in wanted:
            _copy(node, result)
        for module in {node.graph.owning_module for node, _ in wanted}:
            module.recompile()
        return PassResult(graph_module, bool(wanted))

    return copy


def _graph_modules(graph_module: GraphModule) -> list[GraphModule]:
    """A graph with the graphs of its branches and loops. Delegates have their own memory."""
    bodies = [body for node in graph_module.graph.nodes for body in _bodies(graph_module, node)]
    return [graph_module, *(each for body in bodies for each in _graph_modules(body))]


def _bodies(module: GraphModule, node: Node) -> list[GraphModule]:
    if node.target not in _CONTROL_FLOW:
        return []
    bodies = [getattr(module, each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    return [each for each in bodies if isinstance(each, GraphModule)]


def _is_result(node: Node) -> bool:
    """Whether a node is a tensor that a branch or a loop returns."""
    is_part = node.target is operator.getitem and node.args[0].target in _CONTROL_FLOW
    return is_part and isinstance(node.meta.get("val"), torch.Tensor)


def _is_of_branch(node: Node) -> bool:
    return _is_result(node) and node.args[0].target is _COND


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _needs_copy(module: GraphModule, source: Node, result: Node) -> bool:
    if not _is_result(result):
        return False
    alike, number = _in_same_memory(result), result.args[1]
    viewed = any(each.target in _VIEWS and _is_static(each) for each in alike)
    if source.target is not _COND:
        return viewed and not (source.target is _SCAN and number < len(source.args[1]))
    last = max((user for each in alike for user in each.users), default=result)
    later = any(node.target in _CONTROL_FLOW and source < node <= last for node in module.graph.nodes)
    return later or viewed or any(_is_of_others(body, number) for body in _bodies(module, source))


def _is_static(node: Node) -> bool:
    return all(isinstance(size, int) for size in node.meta["val"].shape)


def _is_of_others(body: GraphModule, number: int) -> bool:
    """Whether a branch returns one of its inputs, or one tensor twice: the result then has no own memory."""
    returned = _returned(body)
    base = returned[number]
    while base.target in _VIEWS:
        base = base.args[0]
    return base.op in ("placeholder", "get_attr") or returned.count(returned[number]) > 1


def _returned(body: GraphModule) -> list[Node]:
    """The results of a branch, in order."""
    (values,) = body.graph.output_node().args
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _in_same_memory(node: Node) -> list[Node]:
    """A node and all nodes in its memory: views, and results that operators have written there."""
    found = [node]
    for each in found:
        found += [user for user in each.users if user not in found and each in _shown_by(user)]
    return found


def _shown_by(node: Node) -> list[Node]:
    """The inputs of an operator whose memory holds its result."""
    if node.target in _VIEWS:
        return [node.args[0]]
    schema = getattr(getattr(node.target, "_op", node.target), "_schema", None)
    if schema is None:
        return []
    written = [number for number, each in enumerate(schema.arguments) if each.alias_info is not None]
    return [node.args[number] for number in written if number < len(node.args)]


def _copy(source: Node, result: Node) -> None:
    source.append(result)  # nothing may be between a branch and the copy
    with source.graph.inserting_after(result):
        copied = source.graph.call_function(ops.edge.dim_order_ops._clone_dim_order.default, (result,))
    copied.meta = {**result.meta, "val": result.meta["val"].clone()}
    result.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)


def check(method: str, graph_module: GraphModule) -> None:
    """Checks that no branch or loop writes to memory that is in use while it runs.

    ExecuTorch verifies no memory plan of a method with branches or loops.

    Args:
        method: The name of the method.
        graph_module: The method with its memory plan.

    Raises:
        BuildError: Something is overwritten while it is needed.
    """
    for wrong, other in _Planned(graph_module, {}).overwritten():
        message = f"by the memory plan, `{other.name}` does not leave `{wrong.name}` as it is, which is needed later"
        raise BuildError.at(("methods", method), message, _HINT)


class _Planned:
    """A graph with its memory plan.

    Args:
        module: The graph.
        given: The places of those inputs that are in the plan of another graph, by name.
    """

    def __init__(self, module: GraphModule, given: Mapping[str, Sequence[TensorSpec]]) -> None:
        self._module, self._given = module, given

    def overwritten(self) -> Iterator[tuple[Node, Node]]:
        """Each node that is needed after another one overwrites it, or that shows another one's place; with the other
        node."""
        nodes = list(self._module.graph.nodes)
        for number, node in enumerate(nodes):
            if node.target is memory.view and _is_static(node) and _is_of_branch(node.args[0]):
                yield node.args[0], node
            bodies = [(body, self._inside(node, body)) for body in _bodies(self._module, node)]
            written = [spec for body, _ in bodies for spec in _written(body)]
            for earlier in nodes[:number] if written else ():
                needed = any(user >= node for each in _in_same_memory(earlier) for user in each.users)
                if needed and any(_overlap(one, other) for one in self._places(earlier) for other in written):
                    yield earlier, node
            for _, inside in bodies:
                yield from inside.overwritten()

    def _places(self, node: Node) -> list[TensorSpec]:
        """The places where the tensor of a node may be."""
        if node.target is memory.view:
            return self._places(node.args[0])
        if not _is_of_branch(node):
            return [*_specs(node), *self._given.get(node.name, ())]
        cond, number = node.args
        return [
            place
            for body in _bodies(self._module, cond)
            for place in self._inside(cond, body)._places(_returned(body)[number])
        ]

    def _inside(self, node: Node, body: GraphModule) -> _Planned:
        """A branch or a loop. The inputs of a branch are in the places of the operands."""
        given: dict[str, Sequence[TensorSpec]] = {}
        if node.target is _COND:
            operands = zip(body.graph.find_nodes(op="placeholder"), node.args[3], strict=True)
            given = {inside.name: self._places(outside) for inside, outside in operands if isinstance(outside, Node)}
        return _Planned(body, given)


def _written(body: GraphModule) -> list[TensorSpec]:
    """The places that a branch or a loop writes to, including those of inner branches and loops."""
    nodes = [node for module in _graph_modules(body) for node in module.graph.nodes]
    return [spec for node in nodes if node.target is not memory.view for spec in _specs(node)]


def _specs(node: Node) -> list[TensorSpec]:
    """The places that are planned for a node."""
    specs = pytree.tree_leaves(node.meta.get("spec"))
    return [each for each in specs if isinstance(each, TensorSpec) and each.mem_offset is not None]


def _overlap(one: TensorSpec, other: TensorSpec) -> bool:
    if one is other or one.mem_id != other.mem_id:  # an input of a body may share the place of its operand
        return False
    return bool(
        one.mem_offset < other.mem_offset + other.allocated_memory
        and other.mem_offset < one.mem_offset + one.allocated_memory
    )
