"""Records what calls of an exported method have shown: whether values were on both sides of limits and conditions, and
which states have changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from etplugins.comparison.hints import LIMITS, dependents, limits, operator, states

LIMITED = (*LIMITS, "where", "masked_fill")
"""Operators whose input a model means to have on both sides of a limit."""
_SAMPLED = 1 << 16  # how many elements of a tensor are looked at
_CURVED = ("tanh", "sigmoid", "gelu", "silu", "elu", "mish", "softplus", "hardswish", "hardsigmoid", "log_sigmoid")
_FAR = 4.0  # beyond this number, the results of these operators are near their ends
_EXPONENTIAL = {"exp": 89.0, "_softmax": 89.0, "softmax": 89.0, "_log_softmax": 89.0, "logsumexp": 89.0}
"""Above this number, the exponential overflows in float32."""
_ALMOST = 2  # a state is filled after so many calls in a row without an element that changes for the first time


@dataclass(frozen=True)
class _Watched:
    """A node whose input is observed.

    Attributes:
        argument: The number of its argument.
        goals: What may be seen: (what, number, whether an element must be above the number, and not below).
    """

    argument: int
    goals: tuple[tuple[str, float, bool], ...]


class Coverage:
    """The findings from the calls of one method.

    Args:
        program: The exported method.
    """

    def __init__(self, program: ExportedProgram) -> None:
        depends = dependents(program)
        self._watched = {node: goals for node in depends if (goals := _watched(node)) is not None}
        self._seen: set[tuple[Node, str]] = set()
        self._first: dict[str, torch.Tensor] = {}
        self._touched: dict[str, torch.Tensor] = {}
        self._states = states(program)
        self._calm = 0

    def watches(self, node: Node) -> bool:
        """Whether something about an operator can be seen."""
        return node in self._watched

    def see(self, node: Node, arguments: Sequence[Any], result: Any) -> None:
        """Looks at one operator.

        Args:
            node: The node.
            arguments: The values of its arguments.
            result: Its result.
        """
        watched = self._watched[node]
        value = result if watched.argument < 0 else arguments[watched.argument]
        missing = [goal for goal in watched.goals if (node, goal[0]) not in self._seen]
        if not missing or not isinstance(value, torch.Tensor) or not value.numel():
            return
        low, high = map(float, torch.aminmax(_sampled(value)))
        self._seen |= {(node, what) for what, number, above in missing if (high > number if above else low < number)}

    def see_states(self, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> None:
        """Looks at what a call has changed.

        Args:
            before: The buffers before the call, by name.
            after: Those after it.
        """
        grown = False
        for name in self._states & before.keys():
            changed = _sampled(before[name]) != _sampled(after[name])
            touched = self._touched.get(name, torch.zeros_like(changed))
            self._touched[name] = touched | changed
            grown |= bool((changed & ~touched).any())
        self._calm = 0 if grown else self._calm + 1

    @property
    def fills(self) -> bool:
        """Whether the last calls have changed elements of a state for the first time."""
        return bool(self._states) and self._calm < _ALMOST

    def unseen(self, names: Collection[str] = ()) -> list[tuple[Node, str]]:
        """The operators with unobserved cases, each with these cases, in the order of the graph.

        Args:
            names: The names of operators to look at; none for all.
        """
        return [
            (node, what)
            for node, watched in self._watched.items()
            for what, _, _ in watched.goals
            if (node, what) not in self._seen and (not names or operator(node) in names)
        ]


def _watched(node: Node) -> _Watched | None:
    value = node.meta.get("val")
    if node.op != "call_function":
        return None
    name = operator(node)
    if name in ("where", "masked_fill"):
        return _Watched(0 if name == "where" else 1, (("was true", 0.5, True), ("was false", 0.5, False)))
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        return _Watched(-1, (("was true", 0.5, True), ("was false", 0.5, False)))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    if name in (*LIMITS, "relu"):
        low, high = limits(node)
        goals = [("was below its lower limit", low, False), ("was above its upper limit", high, True)]
        if name == "relu":
            goals.append(("was above its lower limit", low, True))
        return _Watched(0, tuple((what, number, above) for what, number, above in goals if number is not None))
    if name in _CURVED:
        return _Watched(0, (("below -4", -_FAR, False), ("above 4", _FAR, True)))
    if name in _EXPONENTIAL:
        return _Watched(0, (("where an exponential overflows", _EXPONENTIAL[name], True),))
    return None


def _sampled(value: torch.Tensor) -> torch.Tensor:
    """Some elements of a tensor, in each part of it."""
    value = value.detach()
    if value.dtype == torch.bool:
        value = value.to(torch.uint8)
    if value.numel() <= _SAMPLED or not value.is_contiguous():
        return value.flatten()
    return value.view(-1)[:: value.numel() // _SAMPLED | 1]
