"""The graphs of a program in the form of Model Explorer: JSON data, without its package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etbuild.errors import InputError, printable
from etbuild.results import LoweringFacts, MethodGraph
from etkit.tables import size

_COLOURS = ("#dbeafe", "#dcfce7", "#fef3c7", "#ede9fe")  # of nodes in delegates, by backend
LOWERING = ".lowering.json"
"""Ends the name of the file with the whole graph, which `etbuild build --origins` and Bazel write beside a program."""


def of_file(path: Path) -> list[dict[str, Any]]:
    """The graph of each method.

    Args:
        path: A `.pte`, or the file with its whole graph. If that is beside a `.pte`, it is read too: a `.pte` does not
            say what a delegate took, and which layer an operator comes from.

    Raises:
        InputError: The file is no program, or it is damaged.
    """
    from etbuild.steps.facts import read_lowering

    if path.name.endswith(LOWERING):
        with _damage_of(path):
            return _shown(read_lowering(path)["graphs"])
    if (beside := path.with_suffix(LOWERING)).is_file():
        with _damage_of(beside):
            if _describes(lowering := read_lowering(beside), path):
                return _shown(lowering["graphs"])
    from etkit.inspection.page import of_file

    return _shown(of_file.graphs(path)[0])


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Turns what happens with facts of any content into an InputError."""
    try:
        yield
    except (LookupError, AttributeError, ArithmeticError, TypeError, ValueError, OSError) as error:
        raise InputError.of(f"{path}: the file is damaged: {error!r}") from error


def _describes(lowering: LoweringFacts, program: Path) -> bool:
    """Whether the facts are those of a program with these bytes."""
    from etbuild.files.digests import file_digest

    digest = file_digest(program)
    return any(each["sha256"] == digest for each in lowering["artifacts"])


def _shown(graphs: Mapping[str, MethodGraph]) -> list[dict[str, Any]]:
    return [{"id": printable(name), "nodes": [*_nodes(graph)]} for name, graph in sorted(graphs.items())]


def _nodes(graph: MethodGraph) -> Iterator[dict[str, Any]]:
    """Yields the nodes. A layer is a namespace, which Model Explorer folds."""
    backends = [*dict.fromkeys(block["backend"] for block in graph["blocks"])]
    for number, node in enumerate(graph["nodes"]):
        block = graph["blocks"][node["block"]] if "block" in node else None
        attributes = {"operator": node["operator"], "node": node.get("name", ""), "layer": node.get("layer", "")}
        if block is not None:
            attributes["delegate"] = f"{node['block']}, {block['backend']}, {size(block['bytes'])}"
        elif node["operator"] not in ("input", "output"):
            attributes["not delegated"] = "; ".join(node.get("why_not", ())) or "no backend took it"
        for weight in (graph["weights"][each] for each in node.get("weights", ())):
            attributes[f"weight {weight['name']}"] = f"{weight['dtype']}{weight['shape']}, {size(weight['bytes'])}"
        shown: dict[str, Any] = {
            "id": str(number),
            "label": printable(node["operator"].rpartition("::")[2]),
            "namespace": printable(node.get("layer", "")).replace("/", "_").replace(".", "/"),
            "attrs": [
                {"key": printable(key), "value": printable(str(each))} for key, each in attributes.items() if each
            ],
            "incomingEdges": [
                {"sourceNodeId": str(source), "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
                for place, source in enumerate(node["inputs"])
            ],
        }
        if block is not None:
            shown["style"] = {"backgroundColor": _COLOURS[backends.index(block["backend"]) % len(_COLOURS)]}
        yield shown
