"""Runs an exported method in PyTorch, one operator after the other, and keeps its state between calls."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from etbuild.comparison.coverage import Coverage

_AT_ONCE = 1 << 20  # elements of a large tensor that are dequantized or rounded at once
_QUANTIZES = ("quantized_decomposed::quantize", "torchao::quantize")
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
    """Changes results by as much as their dtype may round: floating-point numbers by a few units in the last place,
    those of 16 bits by one, and what is quantized by a small part of a step before it is rounded. So a quantized number
    becomes its neighbour only if it was about as near to both. How far outputs then move is what rounding explains.

    The changes are random, but equal numbers change alike, as in a kernel: where an image is flat, all of it moves.

    Args:
        seed: The seed of the changes. For an even one, an activation reads what was not quantized before it, since
            XNNPACK fuses it with the operator before it; and scales of groups have 16 bits.
        of_step: The part of a step.
    """

    UNITS = 4
    OF_STEP = 2**-7
    """Steps were seen to round otherwise at up to 0.002 of their width from the middle: XNNPACK rounds biases, too."""

    def __init__(self, seed: int, of_step: float = OF_STEP) -> None:
        self.fuses = seed % 2 == 0
        self._generator = torch.Generator().manual_seed(seed)
        self._of_step = of_step
        torch.manual_seed(seed)  # of operators that draw random numbers

    def of(self, value: Any, *, own: bool = False) -> Any:
        """A result, or a list of results, changed.

        Args:
            value: The result.
            own: Whether nothing else reads the memory of the result, so that it may be changed in its place.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        if not isinstance(value, torch.Tensor) or not value.numel() or not value.is_floating_point():
            return value
        relative = (self.UNITS if value.element_size() >= 4 else 1) * torch.finfo(value.dtype).eps
        salt = self._salt()
        if value.numel() <= _AT_ONCE:
            return (value * (1 + relative * _noise(value, salt))).to(value.dtype)
        changed = value if own and value.is_contiguous() else torch.empty_like(value)
        count = value.numel() // _AT_ONCE  # the random numbers take several times the memory of a part
        for part, into in zip(value.tensor_split(count), changed.tensor_split(count), strict=True):
            into.copy_(part * (1 + relative * _noise(part, salt)))
        return changed

    def before_quantizing(self, value: torch.Tensor, step: float | torch.Tensor, may_be_other: bool) -> torch.Tensor:
        """What is about to be quantized, changed by a small part of a step; by half a step if it may be another one."""
        part = 0.5 if may_be_other else self._of_step
        return (value + part * step * _noise(value, self._salt())).to(value.dtype)

    def _salt(self) -> int:
        return int(torch.randint(1 << 40, (), generator=self._generator))


def _noise(value: torch.Tensor, salt: int) -> torch.Tensor:
    """Numbers from -1 to 1 that look random: a hash of each element."""
    mixed = value.to(torch.float32, copy=True).view(torch.int32).to(torch.int64).add_(salt)
    for times, shift in ((0x9E3779B97F4A7C1, 31), (0xBF58476D1CE4E5B, 29)):
        mixed.mul_(times).bitwise_xor_(mixed >> shift)
    return (mixed & 0xFFFFFF).to(torch.float32).div_(1 << 23).sub_(1)


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
        self._unrounded: dict[Node, torch.Tensor] = {}
        self.work = 0
        self.non_finite: Node | None = None

    def run_node(self, n: Node) -> Any:
        for node in n.all_input_nodes:  # the interpreter forgets a weight after the last operator that needs it
            if isinstance(weight := self.env.get(node), _Weight):
                value = weight.weights[weight.name]
                rounding = self._rounding if weight.is_rounded else None
                self.env[node] = value if rounding is None else rounding.of(value)
        if self._rounding is not None and self._rounding.fuses and (again := _dequantized_for_activation(n)):
            self._unrounded[again] = self.env[n.all_input_nodes[0]]
        value = super().run_node(n) if n not in self._unrounded else self._unrounded.pop(n)
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
        return self._rounding.of(value, own=own)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if self._rounding is not None and (step := _step(n.target, args)) is not None:
            args = self._rounding.before_quantizing(args[0], step, _finds_step(n)), *args[1:]
        if self._rounding is not None and self._rounding.fuses and _has_groups(n.target, args):
            args = *args[:2], args[2].to(torch.bfloat16).to(args[2].dtype), *args[3:]
        return args, kwargs

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


def _name(node: Node) -> str:
    return node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""


def _step(target: Any, args: Sequence[Any]) -> float | torch.Tensor | None:
    """How far apart the numbers are that an operator rounds to; None if it does not quantize."""
    if not isinstance(target, torch._ops.OpOverload) or not target.name().startswith(_QUANTIZES):
        return None
    given = {argument.name: value for argument, value in zip(target._schema.arguments, args, strict=False)}
    step = given.get("scale", given.get("scales"))
    if not isinstance(step, torch.Tensor) or step.numel() == 1:
        return None if step is None else float(step)
    shape = args[0].shape
    if "axis" in given:
        return step.view([-1 if dim == given["axis"] % len(shape) else 1 for dim in range(len(shape))])
    if "block_size" in given:
        step = step.view([size // block for size, block in zip(shape, given["block_size"], strict=True)])
        for dim, block in enumerate(given["block_size"]):
            step = step.repeat_interleave(block, dim)
    return step


def _finds_step(node: Node) -> bool:
    """Whether a step for a whole tensor is found when the method runs: XNNPACK finds one for each row instead."""
    return "quantize_per_tensor" in _name(node) and isinstance(node.args[1], Node)


_ACTIVATION = re.compile(r"aten::(relu|relu6|hardtanh|clamp)_?(\.|$)")


def _dequantized_for_activation(node: Node) -> Node | None:
    """Of a node that quantizes: the one that dequantizes its result for an activation whose result is quantized."""
    if _name(node).startswith(_QUANTIZES) and len(node.users) == 1:
        (again,) = node.users
        of_again = [*again.users]
        if len(of_again) == 1 and _ACTIVATION.match(_name(of_again[0])):
            return again if all(_name(user).startswith(_QUANTIZES) for user in of_again[0].users) else None
    return None


def _has_groups(target: Any, args: Sequence[Any]) -> bool:
    """Whether an operator dequantizes rows with several scales each, which XNNPACK stores in bfloat16."""
    return str(target) == "torchao.dequantize_affine.default" and args[1][-1] < args[0].shape[-1]


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


def arguments(spec: pytree.TreeSpec, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What stands for the inputs of a method, in its order, as positional arguments and keyword arguments.

    Args:
        spec: How they belong together: `call_spec.in_spec` of the exported method.
        leaves: What stands for them.
    """
    positional, keywords = pytree.tree_unflatten(leaves, spec)
    return tuple(positional), dict(keywords)


def with_state(program: ExportedProgram, state: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
    """A copy of a method as a graph module, with these buffers."""
    module = copy.deepcopy(program.module(check_guards=False))
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for key, value in state.items():
            if key in buffers and buffers[key].shape == value.shape:
                buffers[key].copy_(value)
    return module


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
