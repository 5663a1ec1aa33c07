"""Skips decompositions of a method in which there is nothing to decompose.

For partitioners such as XNNPACK's, `to_edge_transform_and_lower` calls `run_decompositions` three times for a method:
with an empty table, which makes the graph functional; without the operators that the partitioner wants to keep; and for
those of them that it does not support. Each call traces the whole method. A functional graph without an operator of
the table stays as it is, so it is not traced again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from executorch.exir.graph_module import contains_any_call_fn_target_op
from executorch.exir.program import _program
from torch.export import ExportedProgram

from etbuild.patching import replaced

_decompose = ExportedProgram.run_decompositions
_make_edge_programs = _program._gen_edge_manager_for_partitioners


@contextlib.contextmanager
def decompose_if_needed() -> Iterator[None]:
    """Returns a context manager in which programs are traced only if there is something to decompose."""

    def make_edge_programs(*arguments: Any) -> Any:
        functional: list[ExportedProgram] = []

        def run_decompositions(self: ExportedProgram, decomp_table: Any = None) -> ExportedProgram:
            known = decomp_table is not None and any(self is program for program in functional)
            if known and not contains_any_call_fn_target_op(self.graph_module, decomp_table):
                return self
            functional.append(_decompose(self, decomp_table))
            return functional[-1]

        with replaced(ExportedProgram, "run_decompositions", run_decompositions):
            return _make_edge_programs(*arguments)

    with replaced(_program, "_gen_edge_manager_for_partitioners", make_edge_programs):
        yield
