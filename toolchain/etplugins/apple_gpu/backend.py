"""Apple's GPUs: Metal, through PyTorch's ahead-of-time Inductor; and MLX, through Apple's array library."""

from __future__ import annotations

import sys
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, EdgeRequirements, Need, Options
from etbuild.backends.needs import package

_MACOS = Need("macOS with Apple's Metal tools", "lower this program on a Mac", lambda: sys.platform == "darwin")
_GENERATED = Need(
    "the generated files of ExecuTorch's MLX backend",
    "ExecuTorch's wheel for macOS has them: lower this program on a Mac, or build ExecuTorch from source",
    package("executorch.backends.mlx.serialization.mlx_graph_schema"),
)


class Metal(BuiltInBackend):
    """The backend `metal`."""

    name = "metal"
    separable = True
    delegate_id = "MetalBackend"
    needs = (_MACOS,)
    takes_weight_only_linear = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's MetalPartitioner, which has no options."""
        from executorch.backends.apple.metal.metal_backend import MetalBackend
        from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

        return MetalPartitioner([MetalBackend.generate_method_name_compile_spec(context.method)])


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
