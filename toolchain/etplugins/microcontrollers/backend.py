"""Cortex-M: microcontrollers, with CMSIS-NN's kernels; and Cadence: Tensilica DSPs.

They delegate nothing: passes put their operators into the graph.
"""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, EdgeRequirements, Need, Options, QuantizerContext
from etbuild.backends.needs import package, python


class CortexM(BuiltInBackend):
    """The backend `cortex-m`."""

    name = "cortex-m"
    separable = False
    whole_program = True
    needs = (
        Need(
            "ExecuTorch 1.5.1",
            "pip install executorch==1.5.1",
            package("executorch.backends.cortex_m.edge_compile_config"),
        ),
    )

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns ExecuTorch's CortexMPassManager with the options of `backend-cortex-m.schema.json`."""
        from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
        from executorch.backends.cortex_m.library import cmsis_nn
        from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
        from executorch.backends.cortex_m.target_config import CortexMTargetConfig
        from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

        target = CortexMTargetConfig.from_target_string(options.get("target", "cortex-m55"))
        if "isa" in options:
            target = CortexMTargetConfig(target.cpu, getattr(cmsis_nn.Backend, options["isa"].upper()))

        class CortexMPasses(ExportedProgramPassBase):  # type: ignore[misc]
            def call(self, exported_program: Any) -> Any:
                explicit = options.get("explicit_layout", False)
                manager = CortexMPassManager(exported_program, target_config=target, use_explicit_layout=explicit)
                return ExportedProgramPassResult(manager.transform(), True)

        config = cortex_m_edge_compile_config()
        return EdgeRequirements((CortexMPasses(),), {"preserve_ops": config.preserve_ops, "_check_ir_validity": False})

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's CortexMQuantizer with the options of `quantizer-cortex-m.schema.json`."""
        from executorch.backends.cortex_m.quantizer.quantization_configs import (
            INT8_PER_TENSOR_CONFIG,
            INT16_PER_TENSOR_CONFIG,
        )
        from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer

        from etplugins.microcontrollers.layouts import channels_last

        config = INT16_PER_TENSOR_CONFIG if options.get("activations") == "int16" else INT8_PER_TENSOR_CONFIG
        explicit = options.get("explicit_layout", False)
        quantizer = CortexMQuantizer(config, use_explicit_layout=explicit)
        if explicit:
            return quantizer
        transform = quantizer.transform_for_annotation
        quantizer.transform_for_annotation = lambda model: channels_last(transform(model))
        return quantizer


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
