"""Qualcomm AI Engine Direct: Hexagon, Adreno and LPAI processors of Snapdragon chips."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, EdgeRequirements, Options, Partitioners, QuantizerContext
from etbuild.backends.needs import sdk

_SDK = sdk(
    "QNN_SDK_ROOT",
    "Qualcomm's AI Engine Direct SDK",
    "lib/x86_64-linux-clang/libQnnHtp.so",
    "get it from Qualcomm: nothing is downloaded here",
)
_SPEC_OPTIONS = (
    *("online_prepare", "shared_buffer", "profile_level"),
    *("dump_intermediate_outputs", "debug", "use_mha2sha"),
)
_PREFIXES = {  # for each option, ExecuTorch's enumeration and the prefix of its members
    "htp_performance_mode": ("QnnExecuTorchHtpPerformanceMode", "kHtp"),
    "precision": ("QnnExecuTorchGpuPrecision", "kGpuPrecision"),
    "client_perf_type": ("QnnExecuTorchLpaiClientPerf", "k"),
    "affinity": ("QnnExecuTorchLpaiCoreAffinity", "k"),
    "target_env": ("QnnExecuTorchLpaiTargetEnv", "k"),
}


class Qualcomm(BuiltInBackend):
    """The backend `qualcomm`."""

    name = "qualcomm"
    separable = False
    delegate_id = "QnnBackend"
    needs = (_SDK,)
    mutable_buffers_hint = "write `skip_mutable_buffer: true` into the options of `qualcomm`"
    same_options = ("soc_model",)

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's QnnPartitioner with the options of `backend-qualcomm.schema.json`."""
        from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner

        class Prepared(QnnPartitioner):  # type: ignore[misc]
            """Also runs Qualcomm's passes on the export, as ExecuTorch's own entry point for this backend does."""

            def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
                return _pass_manager(options).transform_for_export_pipeline(exported_program)

        return Prepared(
            _compile_specs(options),
            skip_node_id_set=set(options.get("skip_node_ids", [])),
            skip_node_op_set=set(options.get("skip_node_ops", [])),
            skip_mutable_buffer=options.get("skip_mutable_buffer", False),
        )

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's QnnQuantizer with the options of `quantizer-qualcomm.schema.json`."""
        from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
        from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType

        kind = QnnExecuTorchBackendType[f"k{options.get('processor', 'htp').capitalize()}Backend"]
        quantizer = QnnQuantizer(backend=kind, soc_model=QcomChipset[options["soc_model"]])
        quantizer.set_default_quant_config(
            QuantDtype[f"use_{options.get('quant_dtype', '8a8w')}"],
            is_qat=context.qat,
            is_conv_per_channel=options.get("conv_per_channel", True),
            is_linear_per_channel=options.get("linear_per_channel", True),
        )
        quantizer.add_discard_nodes(options.get("skip_nodes", []))
        return quantizer

    def pairs_partitions(self, options: Options) -> bool:
        """Returns True: it always does."""
        return True

    def pairs_partitions_of(self, partitioner: Any) -> bool:
        """Returns True: it always does."""
        return True

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns the passes that Qualcomm runs after the conversion to the edge dialect."""
        passes = _pass_manager(options).get_to_edge_transform_passes(
            program,
            compiler_specs=_compile_specs(options),
            skip_node_id_set=set(options.get("skip_node_ids", [])),
            skip_node_op_set=set(options.get("skip_node_ops", [])),
            convert_linear_to_conv2d=options.get("convert_linear_to_conv2d", False),
        )
        return EdgeRequirements(tuple(passes), {"_check_ir_validity": False})

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """Returns a context that starts Qualcomm's compiler once for all methods."""
        from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner
        from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext

        manager: AbstractContextManager[None] = QnnManagerContext(
            {
                method: partitioner.compiler_specs_snapshot
                for method, of_method in partitioners.items()
                for partitioner in of_method
                if isinstance(partitioner, QnnPartitioner)
            }
        )
        return manager


def _pass_manager(options: Options) -> Any:
    from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls

    return get_qnn_pass_manager_cls(_backend_options(options).backend_type)()


def _compile_specs(options: Options) -> list[Any]:
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils.utils import generate_qnn_executorch_compiler_spec

    settings = {name: options[name] for name in _SPEC_OPTIONS if name in options}
    specs: list[Any] = generate_qnn_executorch_compiler_spec(
        QcomChipset[options["soc_model"]], _backend_options(options), **settings
    )
    return specs


def _backend_options(options: Options) -> Any:
    from executorch.backends.qualcomm.serialization import qc_schema
    from executorch.backends.qualcomm.utils import utils

    makers = {
        "htp": utils.generate_htp_compiler_spec,
        "gpu": utils.generate_gpu_compiler_spec,
        "lpai": utils.generate_lpai_compiler_spec,
    }
    processor = next(name for name in makers if name in options)
    arguments = dict(options[processor])
    for name in arguments.keys() & _PREFIXES.keys():
        kind, prefix = _PREFIXES[name]
        arguments[name] = getattr(qc_schema, kind)[prefix + arguments[name]]
    return makers[processor](**arguments)
