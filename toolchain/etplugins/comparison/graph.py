"""Runs an exported method in PyTorch, one operator after the other, and keeps its state between calls."""

from __future__ import annotations

import copy
import operator
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from etplugins.comparison.coverage import Coverage

_AT_ONCE = 1 << 20  # so many elements of a large tensor are dequantized at once
_IN_CACHE = 1 << 16  # so many are rounded at once: all numbers on the way fit in the processor's cache
_DEQUANTIZE = "torchao.dequantize_affine.default"
_MIX = 0x2C1B3C6D  # an odd number whose bits look random
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
            Each is read for the first operator that needs it, and forgotten after the last one.
        coverage: Records what calls show; None to record nothing.
        replaced: Parameters in place of those of the method, by name. Outputs can be differentiated with respect to
            those that require it.
        """
        self._program, self._weights, self._coverage = program, weights, coverage
        self._content: dict[str, object] = {**program.constants, **program.state_dict, **(replaced or {})}
        self._names = weights.keys() - (replaced or {}).keys()
        self._traced = any(value.requires_grad for value in (replaced or {}).values())
        self.steps = _steps(program.graph_module)
        self.state = state

    def call(self, leaves: Sequence[Any], rounding: Rounding | None = None) -> tuple[list[Any], int]:
        """Calls the method.

        Args:
            leaves: The inputs, in the order of the method.
            rounding: Changes each result as other roundings would; None to leave results as they are.

        Returns:
            The outputs, and how many numbers the operators have read and written.
        """
        with torch.set_grad_enabled(self._traced):
            run = _Run(self._program.graph_module, rounding, self._coverage)
            results = run.run(self.steps, self._inputs(leaves, rounding))
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
        """The first operator in a call that makes NaN or an infinity from finite numbers; None if there is none.

        Args:
            leaves: The inputs. The state must be as before the call. The call changes it.
        """
        with torch.no_grad():
            run = _Run(self._program.graph_module, None, searches=True)
            run.run(self.steps, self._inputs(leaves, None))
        return run.non_finite

    def inputs(self, leaves: Sequence[Any]) -> Iterator[Any]:
        """The values of all inputs of the graph, in its order.

        Args:
            leaves: The inputs, in the order of the method.
        """
        for value in self._inputs(leaves, None):
            yield value.weights[value.name] if isinstance(value, _Weight) else value

    def _inputs(self, leaves: Sequence[Any], rounding: Rounding | None) -> Iterator[Any]:
        given = iter(leaves)
        for spec in self._program.graph_signature.input_specs:
            if spec.target in self._names:
                yield _Weight(self._weights, spec.target, spec.kind != InputKind.BUFFER)
                continue
            if spec.kind == InputKind.BUFFER:
                yield self.state[str(spec.target)]  # not rounded: an operator may write to it
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
        others: The names of buffers to leave out.
    """
    content = {**program.constants, **program.state_dict}
    names = [name for name in program.graph_signature.buffers if name not in others]
    return {name: content[name].detach().clone() for name in names}


def is_quantized(program: ExportedProgram) -> bool:
    """Whether a method has operators that quantize. If it has, a backend may round to the neighbouring number."""
    return any("quantize" in str(node.target) for node in program.graph.nodes)


class Rounding:
    """Changes results by as much as their dtype may round: floating-point numbers by a few units in the last place,
    those of 16 bits by one, and what is quantized by a small part of a step before it is rounded. So a quantized number
    becomes its neighbour only if it was about as near to both. Rounding explains errors as large as these changes make
    in the outputs.

    The changes are random, but equal numbers change alike, as in a kernel: where an image is flat, all of it moves.

    Args:
        seed: The seed of the changes. With an even seed, an activation reads its input before it is quantized, since
            XNNPACK fuses the activation with the operator before it; and scales of groups have 16 bits.
        of_step: By which part of a step numbers change before they are quantized.
    """

    UNITS = 4
    OF_STEP = 2**-7
    """XNNPACK, which also rounds biases, rounds the other way up to 0.002 steps from the middle between two numbers."""

    def __init__(self, seed: int, of_step: float = OF_STEP) -> None:
        self.fuses = seed % 2 == 0
        self._random = random.Random(seed)
        self._of_step = of_step
        torch.manual_seed(seed)  # for operators that draw random numbers

    def of(self, value: Any, *, own: bool = False) -> Any:
        """Returns a result, or a list of results, with changes.

        Args:
            value: The result.
            own: Whether nothing else reads the memory of the result, so that it may be changed in place.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        if not isinstance(value, torch.Tensor) or not value.numel() or not value.is_floating_point():
            return value
        relative = (self.UNITS if value.element_size() >= 4 else 1) * torch.finfo(value.dtype).eps
        salt = self._salt()
        large = value.numel() > _AT_ONCE
        flat = value.is_contiguous()
        changed = value if own and large and flat else torch.empty_like(value)
        for part, into in zip(*(_parts(each, flat) for each in (value, changed)), strict=True):
            into.copy_(_moved(part, salt, relative))
        return changed

    def before_quantizing(self, value: torch.Tensor, step: float | torch.Tensor, may_be_other: bool) -> torch.Tensor:
        """The input of a quantizing operator, changed by a small part of a step, or by half a step if
        `may_be_other`."""
        part = 0.5 if may_be_other else self._of_step
        return (value + part * step * _noise(value, self._salt())).to(value.dtype)

    def _salt(self) -> tuple[int, int]:
        return self._random.getrandbits(31) | 1, self._random.getrandbits(31)


def _parts(value: torch.Tensor, flat: bool) -> Sequence[torch.Tensor]:
    """Views that together are a tensor: the numbers on the way to a changed part take several times its memory."""
    parts: Sequence[torch.Tensor] = (
        value.view(-1).split(_IN_CACHE) if flat else value.tensor_split(value.numel() // _AT_ONCE + 1)
    )
    return parts


def _moved(value: torch.Tensor, salt: tuple[int, int], relative: float) -> torch.Tensor:
    """A value, each element changed by up to a part of itself. Products with powers of two are exact.

    Numbers of 16 bits also change by the distance between the smallest ones, which have few digits.
    """
    if value.dtype == torch.float16:
        limits = torch.finfo(value.dtype)
        noise, step = _noise(value, salt), (value != 0) * (limits.smallest_normal * limits.eps)
        return (noise * relative).add_(1).mul_(value).add_(noise * step).to(value.dtype)
    return _hashed(value, salt).mul_(2**-31 * relative).add_(1).mul(value).to(value.dtype)


def _noise(value: torch.Tensor, salt: tuple[int, int]) -> torch.Tensor:
    """Numbers from -1 to 1 that look random: a hash of each element."""
    return _hashed(value, salt).mul_(2**-31)


def _hashed(value: torch.Tensor, salt: tuple[int, int]) -> torch.Tensor:
    """A hash of each element: integers of 32 bits as floats."""
    times, plus = salt
    mixed = value.to(torch.float32, copy=True).view(torch.int32)
    mixed.mul_(_MIX).bitwise_xor_(mixed >> 15).mul_(times).add_(plus)  # the products wrap round
    return mixed.to(torch.float32)


@dataclass(frozen=True)
class _Step:
    """A node of a graph.

    Attributes:
        node: The node.
        inputs: The nodes whose results it takes.
        forgets: Those of `inputs` whose results no later node takes.
        dequantizes: Whether it dequantizes rows, which takes three times the memory of the floats.
        quantizes: Whether it quantizes.
        again: The node that dequantizes this node's result for an activation that a backend may fuse; None without one.
    """

    node: Node
    inputs: tuple[Node, ...]
    forgets: tuple[Node, ...]
    dequantizes: bool
    quantizes: bool
    again: Node | None

    @classmethod
    def of(cls, node: Node, last: Mapping[Node, Node]) -> _Step:
        """Returns the step of a node. `last` has the last user of each node."""
        inputs, name = (*node.all_input_nodes,), _name(node)
        forgets = tuple(each for each in inputs if last[each] is node)
        again = _dequantized_for_activation(node)
        return cls(node, inputs, forgets, str(node.target) == _DEQUANTIZE, name.startswith(_QUANTIZES), again)


def _steps(module: torch.fx.GraphModule) -> list[_Step]:
    """The nodes of a graph in its order."""
    last = {each: node for node in module.graph.nodes for each in node.all_input_nodes}
    return [_Step.of(node, last) for node in module.graph.nodes]


class _Run:
    """One run of a graph. It counts the numbers that operators read and write.

    It replaces `torch.fx.Interpreter`, which spends four fifths of the time of a small model on needs of tracing.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        rounding: Rounding | None,
        coverage: Coverage | None = None,
        searches: bool = False,
    ) -> None:
        self._module, self._rounding, self._coverage, self._is_searched = module, rounding, coverage, searches
        self._unrounded: dict[Node, torch.Tensor] = {}
        self.work = 0
        self.non_finite: Node | None = None

    def run(self, steps: Sequence[_Step], given: Iterator[Any]) -> Any:
        """Runs the nodes with the inputs of the graph. Returns its results."""
        values: dict[Node, Any] = {}
        for step in steps:
            node = step.node
            for each in step.inputs:
                values[each] = self._read(values[each])
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(node.target)(self._module)
            elif node.op == "output":
                return map_arg(node.args[0], values.__getitem__)
            else:
                values[node] = self._called(step, values)
            for each in step.forgets:
                del values[each]
        raise AssertionError("a graph has an output")

    def _read(self, value: Any) -> Any:
        """Returns the content of a weight, which is forgotten after its last use. Returns any other value unchanged."""
        if not isinstance(value, _Weight):
            return value
        content = value.weights[value.name]
        return content if self._rounding is None or not value.is_rounded else self._rounding.of(content)

    def _called(self, step: _Step, values: dict[Node, Any]) -> Any:
        node = step.node
        if step.again is not None and self._rounding is not None and self._rounding.fuses:
            self._unrounded[step.again] = values[step.inputs[0]]
        inputs = [value for each in step.inputs if isinstance(value := values[each], torch.Tensor)]
        arguments = map_arg(node.args, values.__getitem__)
        if node in self._unrounded:
            value = self._unrounded.pop(node)
        else:
            keywords = map_arg(node.kwargs, values.__getitem__) if node.kwargs else {}
            call = _dequantized if step.dequantizes else node.target
            value = call(*self._rounded(step, arguments), **keywords)
        if self._coverage is not None and self._coverage.watches(node):
            self._coverage.see(node, arguments, value)
        written = value if isinstance(value, (list, tuple)) else [value]
        if self._is_searched and self.non_finite is None:
            made = not all(map(is_finite, written)) and all(map(is_finite, inputs))
            self.non_finite = node if made else None
        self.work += sum(each.numel() for each in (*inputs, *written) if isinstance(each, torch.Tensor))
        if self._rounding is None or _is_in(value, inputs):
            return value
        own = isinstance(value, torch.Tensor) and len(inputs) == len(step.inputs)  # and it is not in a list
        return self._rounding.of(value, own=own)

    def _rounded(self, step: _Step, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an operator, changed if it quantizes."""
        if self._rounding is None:
            return arguments
        if step.quantizes and (size := _step_size(step.node.target, arguments)) is not None:
            changed = self._rounding.before_quantizing(arguments[0], size, _finds_step(step.node))
            return changed, *arguments[1:]
        if step.dequantizes and self._rounding.fuses and _has_groups(*arguments):
            return *arguments[:2], arguments[2].to(torch.bfloat16).to(arguments[2].dtype), *arguments[3:]
        return arguments


def _dequantized(weight: torch.Tensor, block: Sequence[int], *others: Any, **keywords: Any) -> torch.Tensor:
    """Dequantizes large weights a few rows at a time: torchao takes three times the memory of the floats."""
    dequantize = torch.ops.torchao.dequantize_affine.default
    if not _has_rows(weight, block, *others):
        return dequantize(weight, block, *others, **keywords)
    scales, others = others[:2], others[2:]
    rows = max(1, _AT_ONCE // weight.shape[1])
    found: torch.Tensor | None = None
    for first in range(0, len(weight), rows):
        part = slice(first, first + rows)
        of_part = (each if each is None else each[part] for each in scales)
        made = dequantize(weight[part], block, *of_part, *others, **keywords)
        found = torch.empty(weight.shape, dtype=made.dtype) if found is None else found
        found[part] = made
    assert found is not None, "a large weight has rows"
    return found


def _name(node: Node) -> str:
    return node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""


def _step_size(target: Any, args: Sequence[Any]) -> float | torch.Tensor | None:
    """The distance between the numbers to which an operator rounds; None if its arguments do not say it."""
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
    """Whether a node finds one step for a whole tensor at run time. XNNPACK finds one for each row instead."""
    return "quantize_per_tensor" in _name(node) and isinstance(node.args[1], Node)


_ACTIVATION = re.compile(r"aten::(relu|relu6|hardtanh|clamp)_?(\.|$)")


def _dequantized_for_activation(node: Node) -> Node | None:
    """The node that dequantizes a quantizing node's result for an activation whose own result is quantized."""
    if _name(node).startswith(_QUANTIZES) and len(node.users) == 1:
        (again,) = node.users
        of_again = [*again.users]
        if len(of_again) == 1 and _ACTIVATION.match(_name(of_again[0])):
            return again if all(_name(user).startswith(_QUANTIZES) for user in of_again[0].users) else None
    return None


def _has_groups(weight: torch.Tensor, block: Sequence[int], *others: Any) -> bool:
    """Whether XNNPACK stores the scales of a quantized tensor in bfloat16: its rows have several scales each, or each
    row is one group of 4 bits."""
    of_4_bits = others[3:5] == (-8, 7) and len(block) == 2 and block[0] == 1  # after scales, zero points and dtype
    return bool(block[-1] < weight.shape[-1] or of_4_bits)


def _has_rows(weight: Any, block: Sequence[int], *scales_and_more: Any) -> bool:
    """Whether a quantized tensor is large, and each of its rows has its own scales and zero points."""
    scales = scales_and_more[:2]
    if len(scales) < 2 or weight.dim() != 2 or weight.numel() <= _AT_ONCE or block[0] != 1:
        return False
    return all(each is None or (each.dim() == 2 and len(each) == len(weight)) for each in scales)


def _is_in(value: Any, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a result is a view of an input, or an input that was written to: the result must stay in that memory."""
    memories = {each.untyped_storage().data_ptr() for each in inputs}
    return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in memories


def arguments(spec: pytree.TreeSpec, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arranges values for the inputs of a method as positional arguments and keyword arguments.

    Args:
        spec: How they belong together: `call_spec.in_spec` of the exported method.
        leaves: The values, in the order of the method's inputs.
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
    """The result of a method as a flat list, in the order of the program's outputs. A complex one is a tensor of
    pairs."""
    leaves = pytree.tree_leaves(result, is_leaf=lambda value: value is None)
    leaves = [torch.view_as_real(each.resolve_conj()) if _is_complex(each) else each for each in leaves]
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in leaves]


def _is_complex(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def is_finite(value: Any) -> bool:
    """Whether a value has neither NaN nor an infinity."""
    return not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isfinite().all())


def copied(value: Any) -> Any:
    """A copy of an input, which a method may write to."""
    return value.clone() if isinstance(value, torch.Tensor) else value
