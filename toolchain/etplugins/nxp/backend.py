"""NXP eIQ Neutron: NPUs of i.MX RT and MCX microcontrollers, for quantized models."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, EdgeRequirements, Need, Options, QuantizerContext
from etbuild.backends.needs import package

_SDK = Need(
    "NXP's eIQ Neutron SDK",
    "install the package eiq_neutron_sdk, which NXP has on a package index of its own",
    package("eiq_neutron_sdk"),
)
_SPEC_OPTIONS = (
    "extra_flags",
    "operators_not_to_delegate",
    "use_neutron_for_format_conversion",
    "fetch_constants_to_sram",
    "use_profiling",
)


class Nxp(BuiltInBackend):
    """The backend `nxp`."""

    name = "nxp"
    separable = False
    delegate_id = "NeutronBackend"
    needs = (_SDK,)
    distributions = ("eiq-neutron-sdk",)
    same_options = ("target",)

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's NeutronPartitioner with the options of `backend-nxp.schema.json`."""
        import torch
        from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
        from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
        from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

        aten = torch.ops.aten
        settings = {name: options[name] for name in _SPEC_OPTIONS if name in options}
        return NeutronPartitioner(
            generate_neutron_compile_spec(options["target"], **settings),
            NeutronTargetSpec(options["target"]),
            CustomDelegationOptions(options.get("allow_no_op_partitions", False)),
            preserve_ops=[aten.prelu.default, aten.pad.default, aten.hardswish.default],  # as in ExecuTorch's pipeline
        )

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns the passes that NXP runs after the conversion to the edge dialect, and their configuration."""
        from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
        from executorch.backends.nxp.nxp_backend import core_aten_ops_exception_list

        config = {"_check_ir_validity": False, "_core_aten_ops_exception_list": core_aten_ops_exception_list}
        return EdgeRequirements((NeutronEdgePassManager(),), config)

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's NeutronQuantizer with the options of `quantizer-nxp.schema.json`."""
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
        from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

        return NeutronQuantizer(NeutronTargetSpec(options["target"]), context.qat)
