"""Cadence: Tensilica DSPs. It delegates nothing: passes put its operators into the graph."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, EdgeRequirements, Options
from etbuild.backends.needs import python


class Cadence(BuiltInBackend):
    """The backend `cadence`."""

    name = "cadence"
    separable = False
    needs = (python((3, 12)),)
    whole_program = True

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns ExecuTorch's passes for Cadence with the options of `backend-cadence.schema.json`."""
        from executorch.backends.cadence.aot.compiler import TO_EDGE_OP_EXCEPTION_LIST, TO_EDGE_PRESERVE_OPS
        from executorch.backends.cadence.aot.passes import get_passes

        passes = [kind() for kind in get_passes(options.get("mode", "default"))]
        config = {
            "_skip_dim_order": True,
            "_core_aten_ops_exception_list": TO_EDGE_OP_EXCEPTION_LIST,
            "preserve_ops": TO_EDGE_PRESERVE_OPS,
        }
        return EdgeRequirements(passes, config)
