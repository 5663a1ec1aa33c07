"""The operators of a method that no backend took, and the reasons of its partitioners."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.inputs import source_lines
from etbuild.inputs.source_lines import SourceLines
from etbuild.report.patterns import pattern
from etbuild.results import GraphNode, MethodGraph, Refusal

_LISTED = 100  # of a method, in the report
_LAYERS = 5  # of a refusal
_NAMED = 5  # in a message


def find(graph: MethodGraph | None) -> list[Refusal]:
    """The calls outside of all delegates that have a reason, by operator and reason, the most frequent first.

    Args:
        graph: The lowered method; None if it has no graph.
    """
    return [
        {"operator": operator, "calls": len(nodes), "layers": _layers(nodes), "why_not": why_not}
        for (operator, why_not), nodes in _groups(graph)[:_LISTED]
    ]


def told(method: str, graph: MethodGraph | None, lines: SourceLines) -> Iterator[str]:
    """The most frequent refusals of a method for a message, each with a line of the source if one is known.

    Args:
        method: The name of the method.
        graph: The lowered method; None if it has no graph.
        lines: The lines of the sources.
    """
    for (operator, why_not), nodes in _groups(graph)[:_NAMED]:
        times = f" ({len(nodes)} calls)" if len(nodes) > 1 else ""
        where = next(filter(None, (lines.of_node(method, node.get("name", "")) for node in nodes)), ())
        yield "\n".join(filter(None, [f"`{operator}`{times}: {why_not}", source_lines.shown(where[:1])]))


def _groups(graph: MethodGraph | None) -> list[tuple[tuple[str, str], list[GraphNode]]]:
    groups: dict[tuple[str, str], list[GraphNode]] = {}
    for node in graph["nodes"] if graph is not None else ():
        if "why_not" in node:
            groups.setdefault((node["operator"], "; ".join(node["why_not"])), []).append(node)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def _layers(nodes: list[GraphNode]) -> list[str]:
    """The first layers of some nodes, as patterns. The layer of the model itself has no name."""
    return list(dict.fromkeys(pattern(node["layer"]) for node in nodes if node.get("layer")))[:_LAYERS]
