"""Skips decompositions of a method without anything to decompose.

`to_edge_transform_and_lower` calls `run_decompositions` with an empty table, which makes the graph functional. For each
partitioner such as XNNPACK's, it calls it twice more: without the operators that the partitioner keeps; and for those
of them that the partitioner does not support. Each call traces the whole method. A functional graph without an operator
of the table would not change, so it is not traced again.
"""

from __future__ import annotations

from typing import Any

from executorch.exir.program import _program
from torch.export import ExportedProgram
from torch.fx import GraphModule

from etbuild.patching import replaced, replacing

_decompose = ExportedProgram.run_decompositions
_make_edge_programs = _program._gen_edge_manager_for_partitioners


def _has_any(program: ExportedProgram, operators: Any) -> bool:
    """Whether the program, or a part of it such as the body of a loop, calls one of these operators."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, GraphModule)]
    return any(node.op == "call_function" and node.target in operators for graph in graphs for node in graph.nodes)


@replacing(_program, "_gen_edge_manager_for_partitioners")
def decompose_if_needed(*arguments: Any) -> Any:
    """Makes edge programs. A method is traced only if there is something to decompose."""
    functional: ExportedProgram | None = None

    def run_decompositions(self: ExportedProgram, decomp_table: Any = None) -> ExportedProgram:
        nonlocal functional
        if self is functional and decomp_table and not _has_any(self, decomp_table):
            return self
        functional = _decompose(self, decomp_table)
        return functional

    with replaced(ExportedProgram, "run_decompositions", run_decompositions):
        return _make_edge_programs(*arguments)
