"""Finds the largest dynamic sizes if ExecuTorch's bounds are wrong: ExecuTorch plans memory for them.

ExecuTorch computes with ranges. For a size such as `(t * (2*t)) // t`, it then gets too large a bound. So a view may be
larger than the memory that it shares, and the runtime cannot load the method. If it gets no bound at all, it takes the
size of the example, so larger inputs fail. This module computes such sizes for each size of the inputs. Usable bounds
of ExecuTorch do not change, and so the bytes of programs do not either.

Limits: `memory-of-views`, `size-of-the-example`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from executorch.exir.passes import sym_shape_eval_pass
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.exir.sym_util import eval_upper_bound
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import bound_sympy

from etbuild.export import size_conditions
from etbuild.patching import replaced
from etbuild.workarounds import Plan

_Size: TypeAlias = int | torch.SymInt


class SizeBounds(ConstraintBasedSymShapeEvalPass):  # type: ignore[misc]
    """ExecuTorch's pass that gives dynamic sizes their largest values, and memory plans that fit these."""

    def __init__(self) -> None:
        super().__init__()
        self._symbolic: dict[TensorSpec, tuple[list[_Size], list[_Size]]] = {}

    def call(self, graph_module: GraphModule) -> PassResult:
        """Gives the tensors of a method the largest values of their sizes."""
        self._symbolic.update({spec: (list(spec.shape), list(spec.stride)) for spec in _specs(graph_module)})
        with replaced(sym_shape_eval_pass, "eval_upper_bound", _bound):
            return super().call(graph_module)

    def fitting(self, plan: Plan) -> Plan:
        """A planning algorithm that plans again with the exact sizes if a tensor reaches beyond the planned memory."""

        @functools.wraps(plan, updated=())
        def planned(alignment: int, specs: Any, graph_module: GraphModule, *arguments: Any) -> list[int]:
            memories = plan(alignment, specs, graph_module, *arguments)
            if not any(_is_outside(spec, memories) for spec in _specs(graph_module)):
                return memories
            for spec in _specs(graph_module):
                shape, stride = self._symbolic.get(spec, (spec.shape, spec.stride))
                spec.shape, spec.stride = [*map(_largest, shape)], [*map(_largest, stride)]
            return plan(alignment, specs, graph_module, *arguments)

        return planned


def size_bounds() -> tuple[SizeBounds, Callable[[Plan], Plan]]:
    """A new pass, and what makes a planning algorithm fit it."""
    bounds = SizeBounds()
    return bounds, bounds.fitting


def _specs(graph_module: GraphModule) -> list[TensorSpec]:
    """The tensors of a graph and of the graphs in it."""
    modules = [module for module in graph_module.modules() if isinstance(module, GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    leaves: Iterable[Any] = (leaf for node in nodes for leaf in pytree.tree_leaves(node.meta.get("spec", [])))
    return list({leaf: None for leaf in leaves if isinstance(leaf, TensorSpec)})


def _is_outside(spec: TensorSpec, memories: list[int]) -> bool:
    return spec.mem_offset is not None and spec.mem_offset + spec.nbytes() > memories[spec.mem_id]


def _bound(size: _Size) -> int:
    """ExecuTorch's bound of a size. If it has none, and would take the size of the example: the largest value."""
    usual = int(eval_upper_bound(size))
    if isinstance(size, int) or bound_sympy(size.node.expr, size.node.shape_env.var_to_range).upper is not int_oo:
        return usual
    return max(usual, _largest(size))


def _largest(size: _Size) -> int:
    """The largest value of a size for all sizes of the inputs; ExecuTorch's bound if it cannot be computed."""
    if isinstance(size, int):
        return size
    expression, ranges = size.node.expr, size.node.shape_env.var_to_range
    try:
        if not size_conditions.has_more(expression, ranges):
            return int(max(size_conditions.values(expression, ranges)))
    except Exception:  # noqa: BLE001 - a size that depends on values, or is divided by 0
        pass
    return int(eval_upper_bound(size))
