"""The graphs of a program in the form of Model Explorer: JSON data, without its package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    if path.name.endswith(LOWERING):
        graphs: Mapping[str, MethodGraph] = _lowering(path)["graphs"]
    elif (beside := path.with_suffix(LOWERING)).is_file() and _describes(lowering := _lowering(beside), path):
        graphs = lowering["graphs"]
    else:
        from etkit.inspection.page import of_file

        graphs = of_file.graphs(path)[0]
    return [{"id": printable(name), "nodes": [*_nodes(graph)]} for name, graph in sorted(graphs.items())]


def _lowering(path: Path) -> LoweringFacts:
    from etbuild.steps.facts import read_lowering

    try:
        facts = read_lowering(path)
        if not isinstance(facts["graphs"], dict):
            raise TypeError("`graphs` is no object")
    except (LookupError, TypeError, ValueError, OSError) as error:  # the file may have any content
        raise InputError.of(f"{path}: the file is damaged: {error!r}") from error
    return facts


def _describes(lowering: LoweringFacts, program: Path) -> bool:
    """Whether the facts are those of a program with these bytes."""
    from etbuild.files.digests import file_digest

    digest = file_digest(program)
    return any(each["sha256"] == digest for each in lowering["artifacts"])


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
