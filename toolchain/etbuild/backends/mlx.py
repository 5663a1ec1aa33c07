"""MLX: Apple silicon, by Apple's array library."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import Context, Edge, Need, Options
from etbuild.backends.needs import package

GENERATED = Need(
    "the generated files of ExecuTorch's MLX backend",
    "ExecuTorch's wheel for macOS has them: lower this program on a Mac, or build ExecuTorch from source",
    package("executorch.backends.mlx.serialization.mlx_graph_schema"),
)


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's MLXPartitioner, which has no options."""
    from executorch.backends.mlx import MLXPartitioner

    del options, context
    return MLXPartitioner()


def edge(options: Options, program: Any) -> Edge:
    """MLX's operators are not those of the edge dialect."""
    del options, program
    return Edge(config={"_check_ir_validity": False, "_skip_dim_order": True})
