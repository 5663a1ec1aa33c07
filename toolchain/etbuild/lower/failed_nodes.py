"""Finds the nodes that an error of ExecuTorch is about, and the lines of the model's source that they come from.

ExecuTorch's errors name operators, seldom nodes, and never the method. So the frames of the traceback give the graphs
and nodes that the failed functions worked on, and provenance the nodes of the exported graph.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from traceback import walk_tb
from types import FrameType

import torch
from torch.export import ExportedProgram

from etbuild.exception_text import chain
from etbuild.inputs.source_lines import SHOWN, Line, SourceLines, first_name
from etbuild.inputs.user_code import active_finder
from etbuild.lower.dtypes import dtype_of
from etbuild.lower.partition_counts import operator_name

_OF_ASSERTIONS = "insert_deferred_runtime_asserts"  # torch's stack trace for nodes that check sizes, in any graph
_METHOD = ("method_name", "name")  # ExecuTorch's variables for the method at work


def lines(error: BaseException, programs: Mapping[str, ExportedProgram]) -> tuple[Line, ...]:
    """The lines of the model that an error is about. There may be none.

    If the nodes are not known, returns the lines of all calls of the operators that the message names.

    Args:
        error: The error.
        programs: The methods by name: exported, or lowered.
    """
    frames = list(_frames(error))
    nodes = _named_nodes(error, frames) or _named_operators(error, _graphs(frames))
    if frames and active_finder().name_of(frames[0].f_code.co_filename) is None:
        # Code of users may fail for any reason, so its errors are left out.
        nodes = nodes or in_work(frames)
    known, method = known_lines(programs), _method(frames, programs)
    found = lines_of_nodes(nodes, programs, method) or _nearest(nodes, programs, method)
    return found or _distinct(
        line
        for method, program in sorted(programs.items())
        for line in lines_of_nodes(_named_operators(error, _modules(program)), {method: program})
        or [line for name in _operators(error) for line in known.of_operator(method, name)]
    )


def sources(programs: Mapping[str, ExportedProgram], dtypes: str) -> str | None:
    """For a message: the sources of values in dtypes that ExecuTorch does not compute with.

    Args:
        programs: The exported methods by name.
        dtypes: The beginning of the dtypes' names, such as `complex`.

    Returns:
        At most three lines, one for each source: an operator that makes such a value, a parameter, or a buffer.
    """
    found: dict[str, None] = {}
    for method, program in sorted(programs.items()):
        signature = program.graph_signature
        held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        for node in [node for module in _modules(program) for node in module.graph.nodes]:
            made = dtype_of(node) or ""
            if not made.startswith(dtypes) or any(dtype.startswith(dtypes) for dtype in _dtypes(node)):
                continue
            if node.op == "placeholder" and node.name in held:
                found.setdefault(f"{made} comes from `{held[node.name]}`")
            elif node.op == "call_function":
                lines = lines_of_nodes([node], {method: program})
                at = "".join(f" at {line}" for line in lines[:1])
                found.setdefault(f"{made} comes from `{full_name(node)}`{at}")
    return "\n".join(list(found)[:SHOWN]) or None


def _nearest(
    nodes: Collection[torch.fx.Node],
    programs: Mapping[str, ExportedProgram],
    method: str | None,
) -> tuple[Line, ...]:
    """The lines of the operators whose results the nodes read. A pass of a backend has made the nodes, so they have no
    lines."""
    seen, now = {*nodes}, [*nodes]
    while now:
        now = list(dict.fromkeys(each for node in now for each in node.all_input_nodes if each not in seen))
        seen.update(now)
        found = lines_of_nodes(now, programs, method)
        if found:
            return found
    return ()


def operator_in_work(error: BaseException) -> str | None:
    """The operator of the node that the failed function worked on, such as `aten.squeeze_copy.dim`."""
    nodes = in_work(list(_frames(error)))
    return full_name(nodes[0]) if nodes else None


def lines_of_nodes(
    nodes: Collection[torch.fx.Node],
    programs: Mapping[str, ExportedProgram],
    method: str | None = None,
) -> tuple[Line, ...]:
    """The lines of nodes of any graph that was made from a method.

    Args:
        nodes: The nodes.
        programs: The methods by name.
        method: The method of the nodes; None if it may be any method.
    """
    known = known_lines(programs)
    methods = [method] if method is not None else list(programs)
    return _distinct(line for name in methods for node in nodes for line in known.of_node(name, first_name(node)))


def known_lines(programs: Mapping[str, ExportedProgram]) -> SourceLines:
    """The lines of methods: their own if they were exported in this process, or else those in the export's file."""
    traces = {node.meta.get("stack_trace") for program in programs.values() for node in program.graph.nodes}
    own = any(trace is not None and _OF_ASSERTIONS not in trace for trace in traces)
    finder = active_finder()
    return SourceLines.of_programs(programs, finder.name_of) if own else finder.lines


def _modules(program: ExportedProgram) -> list[torch.fx.GraphModule]:
    return [child for child in program.graph_module.modules() if isinstance(child, torch.fx.GraphModule)]


def _distinct(found: Iterator[Line]) -> tuple[Line, ...]:
    return tuple(dict.fromkeys(found))


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames that an error passed through, the innermost first. The frames of its cause come before them."""
    for each in reversed(chain(error)):
        yield from reversed([frame for frame, _ in walk_tb(each.__traceback__)])


def _is(value: object, kind: type) -> bool:
    """Whether a value is of a class. Unlike `isinstance`, runs no code of the value, which may be a user's."""
    return issubclass(type(value), kind)


def _graphs(frames: list[FrameType]) -> list[torch.fx.GraphModule]:
    """The graphs that the functions worked on, with the graphs inside them, the innermost first."""
    found: dict[int, torch.fx.GraphModule] = {}
    for frame in frames:
        for value in frame.f_locals.values():
            if _is(value, torch.fx.GraphModule) and id(value) not in found:
                inside = [child for child in value.modules() if isinstance(child, torch.fx.GraphModule)]
                found.update({id(child): child for child in inside})
    return list(found.values())


def _named_nodes(error: BaseException, frames: list[FrameType]) -> list[torch.fx.Node]:
    """The nodes that the message names, in the form of torch's interpreter: "While executing %mul_3"."""
    names = set(re.findall(r"While executing %(\w+)", str(error)))
    if not names:
        return []
    at_work = [node for frame in frames for node in frame.f_locals.values() if _is(node, torch.fx.Node)]
    inside = [node for module in _graphs(frames) for node in module.graph.nodes]
    return [node for node in [*at_work, *inside] if node.name in names][:1]


def _named_operators(error: BaseException, graphs: list[torch.fx.GraphModule]) -> list[torch.fx.Node]:
    """The calls of the operators that the message names, in the innermost graph that has such calls."""
    named, refused = set(_operators(error)), refused_dtypes(error)
    for module in graphs:
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        found = [node for node in calls if full_name(node) in named]
        if refused:
            found = [node for node in found if _dtypes(node) in refused.get(full_name(node), [])]
        if found:
            return found
    return []


def in_work(frames: list[FrameType]) -> list[torch.fx.Node]:
    """The call of an operator that the functions worked on; the innermost one counts."""
    for frame in frames:
        values = [*frame.f_locals.values(), frame.f_locals.get("node")]  # the usual name of the main node
        nodes = [value for value in values if _is(value, torch.fx.Node)]
        calls = [node for node in nodes if node.op == "call_function" and _is_operator(node)]
        if calls:
            return calls[-1:]
    return []


def _is_operator(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator of a library or one that calls graphs, such as `torch.cond`."""
    return "::" in operator_name(node) or isinstance(node.target, torch._ops.HigherOrderOperator)


def _method(frames: list[FrameType], methods: Collection[str]) -> str | None:
    for frame in frames:
        for variable in _METHOD:
            name = frame.f_locals.get(variable)
            if isinstance(name, str) and name in methods:
                return name
    return None


def full_name(node: torch.fx.Node) -> str:
    """The operator of a node, as messages name it: `aten.mul.Tensor`, and `aten.abs.default`."""
    name = operator_name(node).replace("::", ".")
    return name if name.count(".") != 1 else f"{name}.default"


def _operators(error: BaseException) -> list[str]:
    """The operators that a message names, such as `aten.mul.Tensor`, in the order of the message."""
    words = re.findall(r"(?<![\w.])(?:torch\._?ops\.)?(\w+(?:::\w+|\.\w+(?=\.\w))(?:\.\w+)?)", str(error))
    dotted = [word.replace("::", ".") for word in words]
    return list(dict.fromkeys(word if word.count(".") > 1 else f"{word}.default" for word in dotted))


def refused_function(error: BaseException) -> str | None:
    """The name of a function of sizes, such as `sym_max`, that the edge dialect refuses without a clear message."""
    if not isinstance(error, AssertionError):
        return None
    refusing = [frame for frame in _frames(error) if frame.f_code.co_name == "check_valid_edge_op"]
    return getattr(refusing[-1].f_locals.get("op"), "__name__", None) if refusing else None


def refused_dtypes(error: BaseException) -> dict[str, list[tuple[str, ...]]]:
    """The operators that ExecuTorch refuses because of the dtypes of their operands, with the dtypes by call."""
    found = re.findall(r"Operator: <EdgeOpOverload: ([\w.]+)>.* with args: \{(.*)\}", str(error))
    refused: dict[str, list[tuple[str, ...]]] = {}
    for name, dtypes in found:
        refused.setdefault(name, []).append(tuple(re.findall(r"'(?!__ret)\w+': torch\.(\w+)", dtypes)))
    return refused


def _dtypes(node: torch.fx.Node) -> tuple[str, ...]:
    """The dtypes of a call's tensors, in the order of its arguments."""
    operands: list[torch.fx.Node] = []
    torch.fx.map_arg((node.args, node.kwargs), operands.append)
    return tuple(filter(None, map(dtype_of, operands)))
