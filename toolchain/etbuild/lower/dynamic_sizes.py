"""Keeps the sizes of inputs dynamic while methods are lowered.

A size is a symbol. If code turns it into a number, it silently becomes the size of the example in the whole method: the
program then takes no other size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from traceback import StackSummary
from types import FrameType
from typing import Any

import torch
from executorch.exir import EdgeProgramManager, sym_util
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from etbuild.errors import BuildError, Problem
from etbuild.exception_text import hints
from etbuild.export import size_conditions
from etbuild.inputs import source_lines
from etbuild.lower import failed_nodes


@dataclass(frozen=True)
class _Size:
    """A dynamic size of an input: the name of the input, and the symbols of the size."""

    name: str
    symbols: frozenset[Any]
    owner: ShapeEnv


Sizes = dict[str, dict[tuple[int, int], _Size]]
"""By method: the dynamic sizes, by the numbers of the input and the dimension. Passes may rename an input: for example,
`input` becomes `input_1`."""

_OTHER = "use other operators"
_INSTEAD = {"map_impl": "use `torch._higher_order_ops.scan.scan`, which takes any number of steps"}


def first_unlimited(program: ExportedProgram) -> torch.fx.Node | None:
    """The first operator whose result has a size without an upper limit: no memory can be planned for it."""
    for node in program.graph.nodes:
        values = node.meta.get("val") if node.op == "call_function" else None
        for value in values if isinstance(values, tuple | list) else (values,):
            if isinstance(value, torch.Tensor) and any(map(_is_unlimited, value.shape)):
                return node
    return None


def _is_unlimited(size: int | torch.SymInt) -> bool:
    try:
        sym_util.eval_upper_bound(size)
    except RuntimeError:
        return True
    return False


def of_inputs(programs: Mapping[str, ExportedProgram]) -> Sizes:
    """The dynamic sizes of the inputs of methods."""
    return {name: dict(_dynamic(program)) for name, program in programs.items()}


def _dynamic(program: ExportedProgram) -> Iterator[tuple[tuple[int, int], _Size]]:
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    for number, spec in enumerate(specs):
        value = values.get(spec.arg.name)
        for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if symbols := free_symbols(size):
                yield (number, index), _Size(spec.arg.name, frozenset(symbols), size.node.shape_env)


@dataclass(frozen=True)
class _Condition:
    """A condition on sizes: its symbols, the code of a pass or backend that needs it, and the operator at work."""

    symbols: frozenset[Any]
    owner: ShapeEnv
    stack: StackSummary
    nodes: list[torch.fx.Node]


class Conditions:
    """The conditions on sizes that lowering relies on."""

    def __init__(self) -> None:
        self._noted: list[_Condition] = []

    def watched(self) -> AbstractContextManager[None]:
        """Notes the conditions of all lowering within this context."""
        return size_conditions.watched(self._note)

    def fixing(self, size: _Size) -> _Condition | None:
        """The condition that fixed a size: the last one with its symbols, because it then becomes a number."""
        about = [each for each in self._noted if each.owner is size.owner and each.symbols & size.symbols]
        return about[-1] if about else None

    def _note(self, sizes: ShapeEnv, condition: Any, frames: list[FrameType]) -> None:
        stack = size_conditions.stack_of_model(frames)
        nodes = failed_nodes.in_work([frame for frame in frames if not size_conditions.of_driver(frame)])
        self._noted.append(_Condition(frozenset(condition.free_symbols), sizes, stack, nodes))


def check(
    before: Sizes, edge: EdgeProgramManager, conditions: Conditions, programs: Mapping[str, ExportedProgram]
) -> None:
    """Fails if sizes that were dynamic before the lowering are fixed after it.

    Args:
        before: The dynamic sizes before.
        edge: The methods after.
        conditions: The conditions that lowering relied on.
        programs: The exported methods by name.

    Raises:
        BuildError: The methods and inputs with such a size, and the code or the operator that fixed it.
    """
    after = of_inputs({name: edge.exported_program(name) for name in edge.methods})
    problems = [
        Problem(
            f"lowering fixes dimension {index} of the input `{size.name}`, which is dynamic",
            ("methods", method),
            _cause(conditions.fixing(size), method, programs),
        )
        for method in sorted(edge.methods)
        for (number, index), size in before.get(method, {}).items()
        if (number, index) not in after[method]
    ]
    BuildError.raise_if(problems)


def _cause(condition: _Condition | None, method: str, programs: Mapping[str, ExportedProgram]) -> str | None:
    """The cause that fixed a size, its place, and what to do."""
    line = condition and size_conditions.line_of(condition.stack)
    if condition is None or line is not None or not condition.nodes:
        hint = "a pass or a backend uses it as a number: change that code, or remove the size from the dynamic shapes"
        return hints(source_lines.shown([line] if line else []), hint)
    operator = failed_nodes.full_name(condition.nodes[0])
    lines = failed_nodes.lines_of_nodes(condition.nodes, {method: programs[method]})
    advice = _INSTEAD.get(operator, _OTHER)
    hint = f"`{operator}` needs it as a number: {advice}, or remove the size from the dynamic shapes"
    return hints(source_lines.shown(lines), hint)
