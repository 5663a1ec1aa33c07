"""MLX: Apple silicon, through Apple's array library."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, EdgeRequirements, Need, Options
from etbuild.backends.needs import package

_GENERATED = Need(
    "the generated files of ExecuTorch's MLX backend",
    "ExecuTorch's wheel for macOS has them: lower this program on a Mac, or build ExecuTorch from source",
    package("executorch.backends.mlx.serialization.mlx_graph_schema"),
)


class Mlx(BuiltInBackend):
    """The backend `mlx`."""

    name = "mlx"
    separable = False
    delegate_id = "MLXBackend"
    needs = (_GENERATED,)
    takes_weight_only_linear = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's MLXPartitioner, which has no options."""
        from executorch.backends.mlx import MLXPartitioner

        return MLXPartitioner()

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns a configuration that accepts MLX's operators, which are not in the edge dialect."""
        return EdgeRequirements(config={"_check_ir_validity": False, "_skip_dim_order": True})
