"""Finds the operator at which a method that computes in 16-bit floats leaves their range."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from etbuild.inputs.source_lines import SourceLines, first_name, shown
from etplugins.comparison.graph import Graph, buffers
from etplugins.comparison.hints import operator as operator_name

_NARROW = (torch.float16, torch.bfloat16)


def first(
    program: ExportedProgram,
    weights: Mapping[str, torch.Tensor],
    leaves: Sequence[Any],
    state: Mapping[str, torch.Tensor] | None = None,
    kind: str = "overflow",
) -> Node | None:
    """The first operator of a call whose result leaves the range; None if there is none.

    Args:
        program: The method. It writes to no operand.
        weights: The weights that it does not hold itself, by name.
        leaves: The inputs, in the order of the method.
        state: Its buffers before the call; None for those with which it begins.
        kind: How it leaves the range: "overflow" or "underflow".
    """
    before = {**buffers(program, weights.keys()), **{name: each.clone() for name, each in (state or {}).items()}}
    graph = Graph(program, before, weights)
    given, values = graph.inputs(leaves), dict[Node, tuple[Any, Any]]()
    with torch.no_grad():
        for step in graph.steps:
            node = step.node
            if node.op == "output":
                return None
            if node.op == "placeholder":
                value = next(given)
                values[node] = value, value  # a step widens what it needs
            elif node.op == "get_attr":
                values[node] = (operator.attrgetter(node.target)(program.graph_module),) * 2
            else:
                values[node] = _called(node, values)
                if _any(_KINDS[kind], *values[node]):
                    return node
            for each in step.forgets:
                del values[each]
    return None


def described(node: Node, method: str, lines: SourceLines, kind: str = "overflow") -> str:
    """A text for people: the operator, its line, and what to write. `kind` is as in `first`."""
    line = shown(lines.of_node(method, first_name(node)))
    is_cast = node.target is torch.ops.aten._to_copy.default and node.users
    kept = next(iter(node.users)) if is_cast else node  # what reads a large number has to stay in float32 too
    layer = [path for path, _ in (kept.meta.get("nn_module_stack") or {}).values() if path]
    keep = f"modules: [{layer[-1]}]" if layer else f"layers: [{operator_name(kept)}]"
    what = f"`{node.target}` (node `{node.name}`)"
    way, ranges = f"`keep: {{{keep}}}` computes it in float32", "`ranges` in `checks.compare` make inputs smaller"
    way += f"; if the inputs are never so large, {ranges}" if kind == "overflow" else ""
    return "\n".join([what, *(line or "").splitlines(), way])


def _called(node: Node, values: Mapping[Node, tuple[Any, Any]]) -> tuple[Any, Any]:
    """The results of an operator in 16 bits and in float32."""
    assert callable(node.target)
    of_16_bits, in_float32 = (map_arg((node.args, node.kwargs), lambda each, n=n: values[each][n]) for n in (0, 1))
    arguments, keywords = pytree.tree_map(_widened, (in_float32[0], dict(in_float32[1])))
    return node.target(*of_16_bits[0], **of_16_bits[1]), node.target(*arguments, **keywords)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _NARROW:
        return value.to(torch.float32)
    return torch.float32 if isinstance(value, torch.dtype) and value in _NARROW else value


def _any(lost: Callable[[torch.Tensor, torch.Tensor], bool], narrow: Any, wide: Any) -> bool:
    pairs = zip(pytree.tree_leaves(narrow), pytree.tree_leaves(wide), strict=True)
    return any(
        isinstance(one, torch.Tensor) and one.dtype in _NARROW and one.shape == other.shape and lost(one, other)
        for one, other in pairs
    )


def _overflows(narrow: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether there is NaN or an infinity where float32 has a number."""
    return bool((~narrow.isfinite() & wide.isfinite()).any())


def _underflows(narrow: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether numbers are so small that more than a half of all together is lost."""
    return bool((narrow.float() - wide).abs().sum() > wide.abs().sum() / 2)


_KINDS = {"overflow": _overflows, "underflow": _underflows}
