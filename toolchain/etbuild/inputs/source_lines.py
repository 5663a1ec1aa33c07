"""Finds the line of the model's source that a node of an exported graph comes from, to name it in a message.

An export has no line numbers, so that a comment in a source rebuilds nothing. The lines stand in a file of their own.
It is in no key of the driver: it is read only to word a message. If it is not there, a message names no line.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.files.value_limits import has_surrogate

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_SCHEMA = "executorch-lines/v1"
SHOWN = 3  # lines that a message names
_TEXT = 120  # characters of a line that a message quotes


@dataclass(frozen=True)
class Line:
    """A line of a source.

    Attributes:
        file: The import path of a declared source, or the path of an installed file below its `site-packages`.
        number: The number of the line, from 1.
        function: The function that the line belongs to.
        text: The line itself, without the spaces around it.
    """

    file: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.number}, in {self.function}"
        shown = self.text if len(self.text) <= _TEXT else f"{self.text[:_TEXT]} ..."
        return f"{place}: `{shown}`" if shown else place


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator in an exported graph.

    Attributes:
        node: The name of the node in the first graph that had it, which is in the provenance of later nodes.
        operator: The operator, such as `aten.mul.Tensor`.
        line: The line that makes the call.
    """

    node: str
    operator: str
    line: Line


class SourceLines:
    """The lines of an export's nodes, by method. They are read when the first line is asked for."""

    def __init__(self, load: Callable[[], Mapping[str, Sequence[OperatorCall]]]) -> None:
        self._load = load

    @functools.cached_property
    def _methods(self) -> Mapping[str, Sequence[OperatorCall]]:
        return self._load()

    @classmethod
    def read(cls, path: Path) -> SourceLines:
        """The lines of a file that `write` made. There are none if it is missing or damaged."""
        return cls(lambda: _read(path))

    @classmethod
    def of_programs(cls, programs: Mapping[str, ExportedProgram], name_of: Callable[[str], str | None]) -> SourceLines:
        """The lines of exported programs.

        Args:
            programs: The programs, by method. Their nodes must still have the `stack_trace` that torch.export writes.
            name_of: Returns the import path of a declared source, from the name of its file; None for another file.
        """
        line = functools.cache(lambda trace: innermost(trace, name_of))
        return cls(lambda: {method: list(_calls(program, line)) for method, program in programs.items()})

    def of_node(self, method: str, name: str) -> tuple[Line, ...]:
        """The lines of a node, by its name in the first graph that had it. Graphs inside one another, such as those of
        `torch.cond`, may use a name twice."""
        return self.of_method(method).get(name, ())

    def of_method(self, method: str) -> Mapping[str, tuple[Line, ...]]:
        """The lines of all nodes of a method, by their names in the first graph that had them."""
        return self._by_node.get(method, {})

    @functools.cached_property
    def _by_node(self) -> dict[str, dict[str, tuple[Line, ...]]]:
        lines: dict[str, dict[str, dict[Line, None]]] = {method: {} for method in self._methods}
        for method, calls in self._methods.items():
            for call in calls:
                lines[method].setdefault(call.node, {})[call.line] = None
        return {method: {node: tuple(each) for node, each in nodes.items()} for method, nodes in lines.items()}

    def of_operator(self, method: str, operator: str) -> tuple[Line, ...]:
        """The lines of all calls of an operator, in the order of the graph.

        Args:
            method: The name of the method.
            operator: The operator, such as `aten.sort.default` or the runtime's `aten::sort.values`. If no call has its
                overload, all overloads count, and the operators that ExecuTorch replaces by this one.
        """
        calls = self._methods.get(method, ())
        exact = [call.line for call in calls if _dotted(call.operator) == _dotted(operator)]
        return _distinct(exact or (call.line for call in calls if _base(call.operator) == _base(operator)))

    def to_json(self) -> dict[str, object]:
        """The lines as JSON data, which `read` understands."""
        places: dict[Line, int] = {}
        methods = {
            method: [[call.node, call.operator, places.setdefault(call.line, len(places))] for call in calls]
            for method, calls in self._methods.items()
        }
        listed = [[line.file, line.number, line.function, line.text] for line in places]
        return {"schema": _SCHEMA, "places": listed, "methods": methods}


NO_LINES = SourceLines(dict)
"""No line is known."""


def shown(lines: Sequence[Line]) -> str | None:
    """At most three lines for a message, one below the other: "at model.py:12, in forward: `y = x * 2`".

    Returns:
        None if there are no lines.
    """
    if not lines:
        return None
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join([*(f"at {line}" for line in lines[:SHOWN]), *more])


def first_name(node: Node) -> str:
    """The name that a node had in the first graph of its method, by its provenance."""
    name, sources = str(node.name), node.meta.get("from_node")
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return name


def _distinct(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(dict.fromkeys(lines))


def _calls(program: ExportedProgram, line_of: Callable[[str], Line | None]) -> Iterator[OperatorCall]:
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            line = line_of(node.meta.get("stack_trace") or "") if node.op == "call_function" else None
            if line is not None:
                yield OperatorCall(first_name(node), str(node.target), line)


_DRIVER = ("etbuild/", "etplugins/")  # the driver calls the method: that is no line of the model
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (.+)(?:\n(?! *File ") *(.*))?', re.MULTILINE)


def innermost(trace: str, name_of: Callable[[str], str | None]) -> Line | None:
    """The innermost line of a declared source in a stack trace; if there is none, that of an installed file."""
    frames = [(file, int(number), function, text.strip()) for file, number, function, text in _FRAME.findall(trace)]
    declared = [(name_of(file), *rest) for file, *rest in frames]
    others = [(_installed(file), *rest) for file, *rest in frames]
    for file, number, function, text in [*reversed(declared), *reversed(others)]:
        if file is not None and not any(map(has_surrogate, (file, function, text))):
            return Line(file, number, function, text)
    return None


def _installed(file: str) -> str | None:
    """The path of an installed file below the directory that Python imports it from. It is the same on any machine."""
    places = [f"{place.rstrip('/')}/" for place in sys.path if place]
    shortest = min((file.removeprefix(place) for place in places if file.startswith(place)), key=len, default=None)
    return None if shortest is None or shortest.startswith(_DRIVER) else shortest


def _dotted(operator: str) -> str:
    """`aten::mul.Tensor` as `aten.mul.Tensor`."""
    return operator.replace("::", ".")


# Operators that ExecuTorch and core ATen have in place of those of exported graphs.
_REPLACED = {
    "dim_order_ops._to_dim_order_copy": "aten.to",
    "dim_order_ops._clone_dim_order": "aten.clone",
    "aten._to_copy": "aten.to",
    "aten.native_dropout": "aten.dropout",
}


def _base(operator: str) -> str:
    """An operator without its overload. Forms that copy their result or write in place count as the plain one."""
    name = ".".join(_dotted(operator).split(".")[:2])
    return _REPLACED.get(name, name.removesuffix("_copy").rstrip("_"))


def _read(path: Path) -> dict[str, list[OperatorCall]]:
    try:
        content = json_file.read(path, json_file.Format("the lines of an export", "step#lines"))
        places = [Line(*place) for place in content["places"]]
        return {
            method: [OperatorCall(node, operator, places[place]) for node, operator, place in calls]
            for method, calls in content["methods"].items()
        }
    except (InputError, IndexError):
        return {}
