"""Runs an exported method in PyTorch, one operator after the other, and keeps its state between calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from etbuild.comparison.coverage import Coverage

_INTEGERS_OF_8_BITS = (torch.int8, torch.uint8)
_AT_ONCE = 1 << 20  # elements of a large tensor that are dequantized or rounded at once
_NO_OUTPUTS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.TOKEN)


class Graph:
    """An exported method with its state."""

    def __init__(
        self,
        program: ExportedProgram,
        state: dict[str, torch.Tensor],
        weights: Mapping[str, torch.Tensor],
        coverage: Coverage | None = None,
        replaced: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Args:
        program: The method. It is not changed.
        state: Its buffers by name, which calls change. Several methods may share them.
        weights: The parameters and buffers that the program does not hold itself and that no method changes, by name.
            Each is read when the first operator needs it, and forgotten after the last one.
        coverage: Records what calls show; None to record nothing.
        replaced: Parameters in place of those of the method, by name. Outputs can be differentiated with respect to
            those that require it.
        """
        self._program, self._weights, self._coverage = program, weights, coverage
        self._content: dict[str, object] = {**program.constants, **program.state_dict, **(replaced or {})}
        self._names = weights.keys() - (replaced or {}).keys()
        self._traced = any(value.requires_grad for value in (replaced or {}).values())
        self.state = state

    def call(self, leaves: Sequence[Any], rounding: Rounding | None = None) -> tuple[list[Any], int]:
        """Calls the method.

        Args:
            leaves: The inputs, in the order of the method.
            rounding: Changes each result a little; None to leave results as they are.

        Returns:
            The outputs, and how many numbers the operators have read and written.
        """
        with torch.set_grad_enabled(self._traced):
            run = _Run(self._program.graph_module, rounding, self._coverage)
            results = run.run(*self._inputs(leaves, rounding), enable_io_processing=False)
        outputs = list[Any]()
        for spec, value in zip(self._program.graph_signature.output_specs, results, strict=True):
            if spec.kind == OutputKind.BUFFER_MUTATION:
                self.state[str(spec.target)] = value
            elif spec.kind not in _NO_OUTPUTS:
                outputs += pytree.tree_leaves(value) if self._traced else outputs_of(value)
        return outputs, run.work

    def see_states(self, before: Mapping[str, torch.Tensor]) -> None:
        """Records what a call has changed.

        Args:
            before: The buffers before the call, by name.
        """
        if self._coverage is not None:
            self._coverage.see_states(before, self.state)

    def first_non_finite(self, leaves: Sequence[Any]) -> Node | None:
        """The first operator that makes NaN or an infinity of finite numbers in a call; None if there is none.

        Args:
            leaves: The inputs. The state must be that before the call, and is changed.
        """
        with torch.no_grad():
            run = _Run(self._program.graph_module, None, searches=True)
            run.run(*self._inputs(leaves, None), enable_io_processing=False)
        return run.non_finite

    def _inputs(self, leaves: Sequence[Any], rounding: Rounding | None) -> Iterator[Any]:
        given = iter(leaves)
        for spec in self._program.graph_signature.input_specs:
            if spec.target in self._names:
                yield _Weight(self._weights, spec.target, spec.kind != InputKind.BUFFER)
                continue
            if spec.kind == InputKind.BUFFER:
                yield self.state[str(spec.target)]  # as it is: an operator may write to it
                continue
            if spec.kind == InputKind.USER_INPUT:
                value: Any = copied(next(given))
            else:
                value = None if spec.target is None else self._content[spec.target]
            yield value if rounding is None else rounding.of(value)


@dataclass(frozen=True)
class _Weight:
    """An input of a graph that is read when an operator needs it. Buffers are not rounded."""

    weights: Mapping[str, torch.Tensor]
    name: str
    is_rounded: bool


def buffers(program: ExportedProgram, others: Collection[str]) -> dict[str, torch.Tensor]:
    """Copies of the buffers of a method, by name.

    Args:
        program: The method.
        others: The names of those that are left out.
    """
    content = {**program.constants, **program.state_dict}
    names = [name for name in program.graph_signature.buffers if name not in others]
    return {name: content[name].detach().clone() for name in names}


def is_quantized(program: ExportedProgram) -> bool:
    """Whether a method has operators that quantize: a backend may then round to the next number."""
    return any("quantize" in str(node.target) for node in program.graph.nodes)


class Rounding:
    """Changes results by as much as their dtype may round, at random: floating-point numbers by a few units in the last
    place, those of 16 bits by one, and what was just quantized to 8 bits by one step. How far outputs then move is what
    rounding explains.

    Args:
        seed: The seed of the changes.
    """

    UNITS = 4

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # of operators that draw random numbers

    def of(self, value: Any, inputs: Sequence[Any] = (), *, own: bool = False) -> Any:
        """A result, or a list of results, changed.

        Args:
            value: The result.
            inputs: The tensors that its operator has read.
            own: Whether nothing else reads the memory of the result, so that it may be changed in its place.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(each, inputs) for each in value)
        if not isinstance(value, torch.Tensor) or not value.numel():
            return value
        quantized = value.dtype in _INTEGERS_OF_8_BITS and any(each.is_floating_point() for each in inputs)
        if not quantized and not value.is_floating_point():
            return value
        if value.numel() <= _AT_ONCE:
            return self._changed(value)
        changed = value if own and value.is_contiguous() else torch.empty_like(value)
        count = value.numel() // _AT_ONCE  # the random numbers take several times the memory of a part
        for part, into in zip(value.tensor_split(count), changed.tensor_split(count), strict=True):
            into.copy_(self._changed(part))
        return changed

    def _changed(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype in _INTEGERS_OF_8_BITS:
            limits, step = torch.iinfo(value.dtype), torch.randint(-1, 2, value.shape, generator=self._generator)
            return (value.to(torch.int16) + step).clamp(limits.min, limits.max).to(value.dtype)
        relative = (self.UNITS if value.element_size() >= 4 else 1) * torch.finfo(value.dtype).eps
        change = 1 + relative * (2 * torch.rand(value.shape, generator=self._generator) - 1)
        return (value * change).to(value.dtype)


class _Run(Interpreter):  # type: ignore[misc] # torch.fx has no types
    """One run of a graph. It counts the numbers that operators read and write."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        rounding: Rounding | None,
        coverage: Coverage | None = None,
        searches: bool = False,
    ) -> None:
        super().__init__(module)
        self._rounding, self._coverage, self._is_searched = rounding, coverage, searches
        self.work = 0
        self.non_finite: Node | None = None

    def run_node(self, n: Node) -> Any:
        for node in n.all_input_nodes:  # the interpreter forgets a weight after the last operator that needs it
            if isinstance(weight := self.env.get(node), _Weight):
                value = weight.weights[weight.name]
                rounding = self._rounding if weight.is_rounded else None
                self.env[node] = value if rounding is None else rounding.of(value)
        value = super().run_node(n)
        if self._coverage is not None and self._coverage.watches(n):
            self._coverage.see(n, self.fetch_args_kwargs_from_env(n)[0], value)
        inputs = [each for each in map(self.env.get, n.all_input_nodes) if isinstance(each, torch.Tensor)]
        if n.op == "call_function":
            written = value if isinstance(value, (list, tuple)) else [value]
            if self._is_searched and self.non_finite is None:
                made = not all(map(is_finite, written)) and all(map(is_finite, inputs))
                self.non_finite = n if made else None
            self.work += sum(each.numel() for each in [*inputs, *written] if isinstance(each, torch.Tensor))
        if self._rounding is None or n.op != "call_function" or _is_in(value, inputs):
            return value
        own = isinstance(value, torch.Tensor) and len(inputs) == len(n.all_input_nodes)  # and no part of a list
        return self._rounding.of(value, inputs, own=own)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Dequantizes large weights in parts of some rows: torchao takes three times the memory of the floats."""
        if str(target) != "torchao.dequantize_affine.default" or not _has_rows(*args):
            return super().call_function(target, args, kwargs)
        (weight, block, *scales), others = args[:4], args[4:]
        rows = max(1, _AT_ONCE // weight.shape[1])
        found: torch.Tensor | None = None
        for first in range(0, len(weight), rows):
            part = slice(first, first + rows)
            of_part = (each if each is None else each[part] for each in scales)
            made = target(weight[part], block, *of_part, *others, **kwargs)
            found = torch.empty(weight.shape, dtype=made.dtype) if found is None else found
            found[part] = made
        return found


def _has_rows(weight: Any, block: Sequence[int], *scales_and_more: Any) -> bool:
    """Whether a quantized tensor is large, and each of its rows has scales and zero points of its own."""
    scales = scales_and_more[:2]
    if len(scales) < 2 or weight.dim() != 2 or weight.numel() <= _AT_ONCE or block[0] != 1:
        return False
    return all(each is None or (each.dim() == 2 and len(each) == len(weight)) for each in scales)


def _is_in(value: Any, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a result is a view of an input, or an input that was written to: it must stay in its memory."""
    memories = {each.untyped_storage().data_ptr() for each in inputs}
    return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in memories


def arguments(program: ExportedProgram, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What stands for the inputs of a method, in its order, as positional arguments and keyword arguments."""
    positional, keywords = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(positional), dict(keywords)


def outputs_of(result: Any) -> list[Any]:
    """The result of a method as a flat list, in the order of the program's outputs."""
    leaves = pytree.tree_leaves(result, is_leaf=lambda value: value is None)
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in leaves]


def is_finite(value: Any) -> bool:
    """Whether a value has neither NaN nor an infinity."""
    return not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isfinite().all())


def copied(value: Any) -> Any:
    """A copy of an input, which a method may write to."""
    return value.clone() if isinstance(value, torch.Tensor) else value
