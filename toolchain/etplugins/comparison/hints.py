"""Reads from an exported graph which values its inputs can have, and which of them may show a mistake."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from etbuild.export.written_buffers import written_nodes

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LIMITS = ("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "threshold", "hardshrink", "softshrink")
_SCALES = ("div", "mul", "remainder", "fmod", "floor_divide", "multiply", "divide")
_BY_DIMENSION = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_copy", "index_add")
_BY_LIST = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
_LEAST, _MOST = 1e-5, 1e6  # constants between these say how large an input is; others do not: a mask is -1e9
_ALIKE = 2  # two constants that differ by a smaller factor are one magnitude
_FEW = 4  # the largest number of magnitudes; and how far a size may be above that of the example
_KERNELS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose2d", "convolution"), "aten::convolution."),
    **{name: f"aten::{name}" for name in ("avg_pool2d", "max_pool2d", "max_pool2d_with_indices")},
}
SLOW_KERNELS = frozenset(_KERNELS.values())
"""The first parts of the names of kernels that `slow_work` counts."""
_COUNTS = 1000  # how far an integer goes that becomes a floating-point number: it is a count, an age, a position
_TABLES = 4  # integers from which rows of a table are computed go so many times the size of the table beyond it
_ENDS = (127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**53 + 1)


def operator(node: Node) -> str:
    """The name of a node's operator without namespace and overload, and without the `_` of operators in place."""
    return str(node.target).removeprefix("aten.").split(".")[0].rstrip("_")


def magnitudes(program: ExportedProgram) -> list[float]:
    """How large inputs may be, from the constants of comparisons, limits and scalings in the graph, in its order.

    `x / 255` says that `x` may be 255, and `clamp(-10, 10)` that what is clamped may be larger than 10.
    """
    found: list[float] = []
    for node in program.graph.nodes:
        for constant in map(abs, _constants(node, (*COMPARISONS, *LIMITS, *_SCALES))):
            size = 1 / constant if constant < 1 and operator(node) in _SCALES and constant else constant
            if _LEAST < size < _MOST and all(not 1 / _ALIKE < size / other < _ALIKE for other in (1, *found)):
                found.append(size)
    return found[:_FEW]


def slow_work(program: ExportedProgram, kernels: Collection[str]) -> int:
    """How many numbers ExecuTorch's own kernels for convolutions and poolings read for the example inputs. They read
    each window of their input anew.

    Args:
        program: The exported method.
        kernels: The kernels that the program calls.
    """
    slow = [node for node in program.graph.nodes if node.op == "call_function" and _is_slow(operator(node), kernels)]
    return sum(math.prod(map(_size, _first(node.meta["val"]).shape)) * _window(node) for node in slow)


def _is_slow(name: str, kernels: Collection[str]) -> bool:
    return name in _KERNELS and any(kernel.startswith(_KERNELS[name]) for kernel in kernels)


def _window(node: Node) -> int:
    of_weight = isinstance(node.args[1], Node)
    return math.prod(node.args[1].meta["val"].shape[1:] if of_weight else node.args[1])


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _size(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def limits(node: Node) -> tuple[float | None, float | None]:
    """The limits between which the operator of a node keeps its input."""
    name, numbers = operator(node), [*node.args[1:], *node.kwargs.values()]
    if name == "relu":
        return 0.0, None
    if name == "relu6":
        return 0.0, 6.0
    if name == "hardtanh" and not numbers:
        return -1.0, 1.0
    low, high = (*numbers, None, None)[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    if name in ("clamp_min", "clamp_max"):
        low, high = (low, None) if name == "clamp_min" else (None, low)
    return (*(float(each) if isinstance(each, (int, float)) else None for each in (low, high)),)  # type: ignore[return-value]


def _constants(node: Node, names: tuple[str, ...]) -> Iterator[float]:
    if node.op == "call_function" and operator(node) in names:
        for value in (*node.args, *node.kwargs.values(), *(6, 3)[: 2 * (operator(node) == "relu6")]):
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                yield float(value)


def dependents(program: ExportedProgram) -> set[Node]:
    """The nodes whose results depend on inputs or on buffers that the method changes."""
    changed = states(program)
    starts = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT or (spec.kind == InputKind.BUFFER and spec.target in changed)
    }
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node.name in starts or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def states(program: ExportedProgram) -> set[str]:
    """The names of the buffers that a method changes. The signature lists them only after decompositions."""
    names = program.graph_signature.inputs_to_buffers
    found = {*program.graph_signature.buffers_to_mutate.values()}
    for written in written_nodes(program):
        while _is_view(written):
            written = written.all_input_nodes[0]
        if written.op != "placeholder":
            continue
        if written.graph is not program.graph:  # an operand of a branch or a loop: any buffer may be meant
            return {*names.values()}
        if written.name in names:
            found.add(names[written.name])
    return found


def _is_view(node: Node) -> bool:
    """Whether the result of a node has the memory of its first operand."""
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    schema = getattr(node.target, "_schema", None)  # `getitem`, which takes one of several results, has none
    return schema is None or any(each.alias_info is not None for each in schema.returns)


@dataclass(frozen=True)
class Integers:
    """Which values an integer input can have.

    Attributes:
        least: The smallest one.
        most: The largest one, as far as the graph says. PyTorch may refuse it.
        special: Values between `least` and `most` that may show a mistake: those with which the graph compares, and the
            limits of other dtypes.
        wide: A wider range that the graph may also take. An integer from which the rows of a table are computed may be
            negative, or larger than the table. A mask may be counts.
        is_mask: Whether the input is a mask, which usually is 0 or 1.
    """

    least: int
    most: int
    special: tuple[int, ...] = ()
    wide: tuple[int, int] | None = None
    is_mask: bool = False


@dataclass
class _Reached:
    """The nodes that an integer input reaches in the graph."""

    tables: list[int]
    constants: list[int]
    is_size: bool = False
    is_float: bool = False
    is_data: bool = False
    is_changed: bool = False


def integers(program: ExportedProgram, index: int, example: torch.Tensor) -> Integers:
    """What an integer input can be.

    Follows it to the tables of which it chooses rows, to the numbers with which it is compared, and to where it becomes
    a size or a floating-point number. An input that reaches none of these is data: it can be any number of its dtype.

    Args:
        program: The exported method.
        index: The number of the input.
        example: Its example.
    """
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    (start,) = (node for node in program.graph.find_nodes(op="placeholder") if node.name == names[index])
    reached = _reached(program, start)
    kind = torch.iinfo(example.dtype)
    own = [int(example.min()), int(example.max())] if example.numel() else [0, 0]
    if reached.tables:
        most = min(reached.tables) - 1
        ends = [0, most, *reached.constants]
        beyond = (max(min(ends) - _TABLES * most, kind.min), min(max(ends) + _TABLES * most, kind.max - 1))
        return Integers(0, most, _between(reached.constants, 0, most), beyond if reached.is_changed else None)
    if reached.is_size:
        return Integers(min(own[0], 1), own[1] + _FEW)
    if own[1] == 1 and own[0] >= 0 and (reached.is_float or reached.constants):
        return Integers(0, 1, wide=(0, min(_COUNTS, kind.max)), is_mask=True)
    if reached.is_float or (reached.constants and not reached.is_data):
        around = [0, *reached.constants, *own]
        wide = _COUNTS if reached.is_float else 1
        least, most = max(min(around) - wide, kind.min), min(max(around) + wide, kind.max)
        return Integers(least, most, _between(reached.constants, least, most))
    # The smallest number of a dtype has no opposite: dividing it by -1 ends the process.
    least, most = max(kind.min, -(2**62)) + (kind.bits > 8), min(kind.max, 2**62)
    return Integers(least, most, _between([*reached.constants, *(-end for end in _ENDS), *_ENDS], least, most))


def _between(constants: list[int], least: int, most: int) -> tuple[int, ...]:
    near = dict.fromkeys(constant + step for constant in constants for step in (0, 1, -1))
    return tuple(value for value in near if least <= value <= most)


def _reached(program: ExportedProgram, start: Node) -> _Reached:
    found, waiting, seen = _Reached([], []), [start], {start}
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if user.op == "output":
                found.is_data = True
                continue
            follows = _see(program, node, user, found)
            if follows and user not in seen:
                seen.add(user)
                waiting.append(user)
    return found


def _see(program: ExportedProgram, node: Node, user: Node, found: _Reached) -> bool:
    """Notes what an operator does with an integer. Returns whether to follow the operator's result."""
    name, arguments, value = operator(user), user.args, user.meta.get("val")
    if name == "embedding" and arguments[1] is node:
        return _table(found, arguments[0], 0)
    if name in _BY_DIMENSION and len(arguments) > 2 and arguments[2] is node:
        return _table(found, arguments[0], arguments[1])
    if name in _BY_LIST and isinstance(arguments[1], (list, tuple)) and node in arguments[1]:
        return _table(found, arguments[0], arguments[1].index(node))
    if name in ("_local_scalar_dense", "item") or _has_new_size(value):
        found.is_size = True
        return False
    if name in COMPARISONS:
        others = [each for each in arguments if each is not node]
        found.constants += [each for other in others for each in _integers_of(program, other)]
        return False
    found.constants += map(int, _constants(user, (*LIMITS, "remainder", "fmod")))
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        found.is_float = True
        return False
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        found.constants.append(0)
        return False
    if isinstance(value, torch.SymInt):  # a size of the tensor, not its values
        return False
    found.is_changed |= torch.Tag.pointwise in getattr(user.target, "tags", ())
    if "shift" in name or name == "pow":
        found.is_size = True
    return True


def _table(found: _Reached, table: Any, dimension: Any) -> bool:
    value = table.meta.get("val") if isinstance(table, Node) else None
    if isinstance(value, torch.Tensor) and value.dim() and isinstance(size := value.shape[dimension], int):
        found.tables.append(size)
    return False


def _has_new_size(value: Any) -> bool:
    """Whether a value is a size that depends on values of tensors, or a tensor with such a size."""
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return any(isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size)) for size in sizes)


def _integers_of(program: ExportedProgram, other: Any) -> Iterator[int]:
    """The numbers with which an integer is compared: a constant, or both ends of a table of positions."""
    if isinstance(other, (int, float)) and math.isfinite(other):
        yield int(other)
    if not isinstance(other, Node):
        return
    while other.op == "call_function" and other.args and isinstance(other.args[0], Node):
        other = other.args[0]
    if operator(other) == "arange":
        yield from (int(each) - (each is not other.args[0]) for each in other.args[-1:] if isinstance(each, int))
        return
    held = _held(program).get(other.name)
    if held is not None and held.numel() and not held.is_floating_point() and held.dtype != torch.bool:
        yield from (int(held.min()), int(held.max()))


def _held(program: ExportedProgram) -> Mapping[str, torch.Tensor]:
    """The buffers and constants that a program holds, by the names of their nodes."""
    content = {**program.constants, **program.state_dict}
    return {
        spec.arg.name: content[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target in content and isinstance(content[spec.target], torch.Tensor)
    }
