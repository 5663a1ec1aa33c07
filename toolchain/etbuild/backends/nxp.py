"""NXP eIQ Neutron: NPUs of i.MX RT and MCX microcontrollers, for quantized models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etbuild.backends.backend import Context, Edge, Need, Options
from etbuild.backends.needs import package

SDK = Need(
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


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's NeutronPartitioner with the options of `backend-nxp.schema.json`."""
    import torch
    from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
    from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

    del context
    aten = torch.ops.aten
    chosen = {name: options[name] for name in _SPEC_OPTIONS if name in options}
    return NeutronPartitioner(
        generate_neutron_compile_spec(options["target"], **chosen),
        NeutronTargetSpec(options["target"]),
        CustomDelegationOptions(options.get("allow_no_op_partitions", False)),
        preserve_ops=[aten.prelu.default, aten.pad.default, aten.hardswish.default],  # as in ExecuTorch's pipeline
    )


def edge(options: Options, program: Any) -> Edge:
    """NXP's passes after the conversion to the edge dialect."""
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
    from executorch.backends.nxp.nxp_backend import core_aten_ops_exception_list

    del options, program
    config = {"_check_ir_validity": False, "_core_aten_ops_exception_list": core_aten_ops_exception_list}
    return Edge((NeutronEdgePassManager(),), config)


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's NeutronQuantizer with the options of `quantizer-nxp.schema.json`, and `qat`."""
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

    del load_callable
    return NeutronQuantizer(NeutronTargetSpec(options["target"]), options["qat"])
