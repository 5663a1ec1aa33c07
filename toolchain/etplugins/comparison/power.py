"""Measures what compared calls can show: whether a wrong weight or input would have changed an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from etbuild.export.written_buffers import readers
from etplugins.comparison import accuracy
from etplugins.comparison.graph import Graph, buffers, is_quantized
from etplugins.comparison.hints import states
from etplugins.comparison.parts import Tolerance

_CALLS = 6  # only the first calls: later ones have large numbers, whose rounding hides the effect of weights
_OTHERS = 4  # so many values from other calls are tried for an input
_VERIFIED = 8  # so many weights are changed, the least important first
_CHANGE = 0.1  # by which part of itself a weight is changed
_LARGE = 100.0  # a change by so many times the largest element moves each output that depends on the weight
_WEAK = 0.1  # a change is tried if its estimated effect is less than this part of the tolerance


class Power:
    """The power of some calls of a method to show mistakes.

    Args:
        program: The exported method.
        weights: The parameters that it does not hold itself, by name.
        calls: The inputs of its calls, one after the other.
        outputs: The outputs of these calls. A method with state computes them again, from its first state.
        tolerance: How far an element may be from the expected one; None for the default.
    """

    def __init__(
        self,
        program: ExportedProgram,
        weights: Mapping[str, torch.Tensor],
        calls: Sequence[list[Any]],
        outputs: Sequence[list[Any]],
        tolerance: Tolerance | None,
    ) -> None:
        self._program, self._weights, self._calls, self._all = program, weights, calls[:_CALLS], calls
        self._tolerance, self._quantized = tolerance, is_quantized(program)
        self._has_states = bool(states(program))
        self._expected = [*self._outputs({}, self._calls)] if self._has_states else outputs[:_CALLS]

    def unproved(self) -> list[str]:
        """Names what may be wrong unnoticed, for messages: parameters by name, and inputs by number.

        A parameter is named if a change by a tenth moves no output beyond the tolerance. It is not named if its value
        cannot matter: a number that is added to all inputs of a softmax changes nothing.
        """
        parameters = self._parameters()
        effects = self._effects(parameters) if parameters else {}
        weak = sorted((name for name in effects if effects[name] < _WEAK), key=lambda name: effects[name])[:_VERIFIED]
        found = [name for name in weak if self._is_unproved(name, parameters[name], effects[name])]
        return [*found, *(f"input {index}" for index in self._inputs() if not self._input_matters(index))]

    def _parameters(self) -> dict[str, torch.Tensor]:
        """The parameters that the graph reads, by name. Quantized ones have no gradient."""
        content = {**self._program.state_dict, **self._weights}
        users = {node.name: node.users for node in self._program.graph.find_nodes(op="placeholder")}
        return {
            str(spec.target): content[str(spec.target)].detach()
            for spec in self._program.graph_signature.input_specs
            if spec.kind == InputKind.PARAMETER and users[spec.arg.name] and not self._quantized
            and content[str(spec.target)].is_floating_point()
        }  # fmt: skip

    def _effects(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Estimates how far a change of each parameter moves the outputs, as a share of the tolerance, from one
        backward pass."""
        inputs = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        generator = torch.Generator().manual_seed(0)
        total, allowed = torch.zeros((), dtype=torch.float64), 0.0
        with torch.enable_grad():
            for value in chain.from_iterable(self._outputs(inputs, self._calls)):
                if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
                    continue
                signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
                limit = self._allowed(value.detach().double(), value.dtype)
                total = total + (value.double() / limit.clamp(min=1e-30) * signs).nan_to_num(0, 0, 0).sum()
                allowed += value.numel()
        if not total.requires_grad:
            return dict.fromkeys(parameters, 0.0)
        found = torch.autograd.grad(total, [*inputs.values()], allow_unused=True)
        return {
            name: 0.0 if slope is None or not slope.any() else _moved(slope, parameters[name]) / allowed**0.5
            for name, slope in zip(inputs, found, strict=True)
        }

    def _allowed(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """How far each element of an output may be from the expected one."""
        known = accuracy.default_tolerance(value.to(dtype), self._quantized)
        tolerance = known if self._tolerance is None else self._tolerance
        sizes = value.abs().nan_to_num(0, 0, 0)
        return tolerance.atol + tolerance.rtol * sizes + tolerance.of_largest * sizes.max()

    def _is_unproved(self, name: str, value: torch.Tensor, effect: float) -> bool:
        size = float(value.abs().max()) or 1.0
        if self._moves({name: value + _CHANGE * torch.where(value == 0, size, value)}):
            return False
        return effect == 0 or self._moves({name: value + _LARGE * size})

    def _inputs(self) -> list[int]:
        """Indices of the inputs whose values the graph reads, and not only their shapes."""
        names = [
            spec.arg.name for spec in self._program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT
        ]
        nodes = {node.name: node for node in self._program.graph.find_nodes(op="placeholder")}
        return [
            index
            for index, name in enumerate(names)
            if isinstance(self._calls[0][index], torch.Tensor)
            and any(user.op != "output" for user in readers(nodes[name]))
        ]

    def _input_matters(self, index: int) -> bool:
        """Whether another value of an input, from another call, changes an output."""
        for number, leaves in enumerate(self._calls):
            others = [each[index] for each in self._all if each[index].shape == leaves[index].shape]
            for other in [each for each in others if not torch.equal(each, leaves[index])][:_OTHERS]:
                changed = [*leaves[:index], other, *leaves[index + 1 :]]
                calls = [*self._calls[:number], changed, *self._calls[number + 1 :]]
                # Without state, a call says nothing about the others.
                if self._moves({}, calls) if self._has_states else self._moves({}, [changed], number):
                    return True
        return False

    def _moves(
        self, replaced: Mapping[str, torch.Tensor], calls: Sequence[list[Any]] | None = None, first: int = 0
    ) -> bool:
        """Whether other parameters or inputs move an output beyond the tolerance, or PyTorch refuses them.

        Args:
            replaced: Other parameters, by name.
            calls: The inputs of calls; None for those of the method.
            first: The number of the first one among the method's own calls.
        """
        try:
            found = self._outputs(replaced, self._calls if calls is None else calls)
            return any(
                accuracy.wrong_outputs(actual, expected, self._tolerance, self._quantized)
                for actual, expected in zip(found, self._expected[first:], strict=False)
            )
        except Exception:  # noqa: BLE001 - operators raise any exception
            return True

    def _outputs(self, replaced: Mapping[str, torch.Tensor], calls: Sequence[list[Any]]) -> Iterator[list[Any]]:
        """Yields the outputs of each of these calls. The first one begins with fresh state."""
        state = buffers(self._program, self._weights.keys())
        graph = Graph(self._program, state, self._weights, replaced=replaced)
        for leaves in calls:
            yield graph.call(leaves)[0]


def _moved(slope: torch.Tensor, value: torch.Tensor) -> float:
    size = float(value.abs().max()) or 1.0
    change = _CHANGE * torch.where(value == 0, size, value)
    return float((slope.double() * change).square().sum().sqrt())
