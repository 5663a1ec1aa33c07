"""Samsung Exynos: NPUs, with the ENN compiler."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, EdgeRequirements, Need, Options, QuantizerContext
from etbuild.backends.needs import package, sdk

_SDK = sdk(
    "EXYNOS_AI_LITECORE_ROOT",
    "Samsung's Exynos AI LiteCore",
    "lib",
    "get it from Samsung's developer site for Exynos chips",
)
_ADAPTOR = Need(
    "ExecuTorch's adaptor for Samsung's compiler",
    "ExecuTorch's wheel does not have it: build ExecuTorch from source with backends/samsung/build.sh",
    package("executorch.backends.samsung.python"),
)


class Samsung(BuiltInBackend):
    """The backend `samsung`."""

    name = "samsung"
    separable = False
    delegate_id = "EnnBackend"
    needs = (_ADAPTOR, _SDK)

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's EnnPartitioner with the options of `backend-samsung.schema.json`."""
        from executorch.backends.samsung.partition.enn_partitioner import EnnPartitioner
        from executorch.backends.samsung.serialization.compile_options import (
            PerformanceMode,
            gen_samsung_backend_compile_spec,
        )

        mode = PerformanceMode[options.get("performance_mode", "default").upper()]
        return EnnPartitioner([gen_samsung_backend_compile_spec(options["chipset"], mode)])

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns the configuration that ExecuTorch's own entry point for this backend uses."""
        from executorch.backends.samsung.utils.export_utils import get_edge_compile_config

        config, names = get_edge_compile_config(), ("_skip_dim_order", "_core_aten_ops_exception_list")
        return EdgeRequirements(config={name: getattr(config, name) for name in names})

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's EnnQuantizer with the options of `quantizer-samsung.schema.json`."""
        from executorch.backends.samsung.quantizer.quantizer import EnnQuantizer, Precision

        quantizer = EnnQuantizer()
        quantizer.setup_quant_params(Precision.A8W8, options.get("per_channel", True), context.qat)
        return quantizer
