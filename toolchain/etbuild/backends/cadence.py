"""Cadence: Tensilica DSPs. It delegates nothing: passes put its operators into the graph."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import Edge, Options


def edge(options: Options, program: Any) -> Edge:
    """ExecuTorch's passes for Cadence with the options of `backend-cadence.schema.json`."""
    from executorch.backends.cadence.aot.compiler import TO_EDGE_OP_EXCEPTION_LIST, TO_EDGE_PRESERVE_OPS
    from executorch.backends.cadence.aot.passes import get_passes

    del program
    passes = [kind() for kind in get_passes(options.get("mode", "default"))]
    config = {
        "_skip_dim_order": True,
        "_core_aten_ops_exception_list": TO_EDGE_OP_EXCEPTION_LIST,
        "preserve_ops": TO_EDGE_PRESERVE_OPS,
    }
    return Edge(passes, config)
