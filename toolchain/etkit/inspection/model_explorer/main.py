"""The adapter that Model Explorer loads. Only Model Explorer imports this module, since it needs its package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_explorer import Adapter, AdapterMetadata, graph_builder

from etbuild.errors import EtbuildError
from etbuild.surroundings.library_output import library_messages_off
from etbuild.version import VERSION
from etkit.inspection.model_explorer import graphs


class ExecutorchProgram(Adapter):  # type: ignore[misc] # the package has no types
    """Shows ExecuTorch programs."""

    metadata = AdapterMetadata(
        id="executorch_program",
        name=f"ExecuTorch program (etbuild {VERSION})",
        description="Methods of a .pte: its delegates, and what no backend took",
        fileExts=["pte"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """The graph of each method. Model Explorer shows the message of an error."""
        del settings
        try:
            with library_messages_off():
                found = graphs.of_file(Path(model_path))
        except EtbuildError as error:
            raise ValueError(str(error)) from error
        return {"graphs": [_graph(each) for each in found]}


def _graph(graph: dict[str, Any]) -> Any:
    """A graph as an object of Model Explorer."""
    return graph_builder.Graph(id=graph["id"], nodes=[_node(each) for each in graph["nodes"]])


def _node(node: dict[str, Any]) -> Any:
    style = node.get("style")
    return graph_builder.GraphNode(
        id=node["id"],
        label=node["label"],
        namespace=node["namespace"],
        attrs=[graph_builder.KeyValue(**each) for each in node["attrs"]],
        incomingEdges=[graph_builder.IncomingEdge(**each) for each in node["incomingEdges"]],
        style=None if style is None else graph_builder.GraphNodeStyle(**style),
    )
