"""TOSA: graphs of Arm's operator set, for tools that read them."""

from __future__ import annotations

from typing import Any

from etbuild.backends.arm.common import DISTRIBUTIONS, TOSA_TOOLS, configured, with_common_options
from etbuild.backends.backend import BuiltInBackend, Context, Options, QuantizerContext


class Tosa(BuiltInBackend):
    """The backend `tosa`."""

    name = "tosa"
    separable = True
    delegate_id = "TOSABackend"
    needs = (TOSA_TOOLS,)
    distributions = DISTRIBUTIONS

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's TOSAPartitioner with the options of `backend-tosa.schema.json`."""
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
        from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

        spec = TosaCompileSpec(options.get("tosa_spec", "TOSA-1.0+FP"))
        return TOSAPartitioner(with_common_options(spec, options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's TOSAQuantizer with the options of `quantizer-tosa.schema.json`."""
        from executorch.backends.arm.quantizer import TOSAQuantizer
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec

        spec = TosaCompileSpec(options.get("tosa_spec", "TOSA-1.0+INT"))
        return configured(TOSAQuantizer(spec), options, context.qat)
