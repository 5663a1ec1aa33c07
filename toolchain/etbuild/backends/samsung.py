"""Samsung Exynos: NPUs, by the ENN compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etbuild.backends.backend import Context, Edge, Need, Options
from etbuild.backends.needs import package, sdk

SDK = sdk(
    "EXYNOS_AI_LITECORE_ROOT",
    "Samsung's Exynos AI LiteCore",
    "lib",
    "get it from Samsung's developer site for Exynos chips",
)
ADAPTOR = Need(
    "ExecuTorch's adaptor for Samsung's compiler",
    "ExecuTorch's wheel does not have it: build ExecuTorch from source with backends/samsung/build.sh",
    package("executorch.backends.samsung.python"),
)


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's EnnPartitioner with the options of `backend-samsung.schema.json`."""
    from executorch.backends.samsung.partition.enn_partitioner import EnnPartitioner
    from executorch.backends.samsung.serialization.compile_options import (
        PerformanceMode,
        gen_samsung_backend_compile_spec,
    )

    del context
    mode = PerformanceMode[options.get("performance_mode", "default").upper()]
    return EnnPartitioner([gen_samsung_backend_compile_spec(options["chipset"], mode)])


def edge(options: Options, program: Any) -> Edge:
    """What ExecuTorch's own entry point for this backend asks of the edge dialect."""
    from executorch.backends.samsung.utils.export_utils import get_edge_compile_config

    del options, program
    config = get_edge_compile_config()
    return Edge(config={name: getattr(config, name) for name in ("_skip_dim_order", "_core_aten_ops_exception_list")})


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's EnnQuantizer with the options of `quantizer-samsung.schema.json`, and `qat`."""
    from executorch.backends.samsung.quantizer.quantizer import EnnQuantizer, Precision

    del load_callable
    quantizer = EnnQuantizer()
    quantizer.setup_quant_params(Precision.A8W8, options.get("per_channel", True), options["qat"])
    return quantizer
