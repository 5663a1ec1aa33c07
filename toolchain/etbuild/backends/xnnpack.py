"""XNNPACK: fp32, bf16 and quantized operators on CPUs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

from etbuild import workarounds
from etbuild.backends.backend import BuiltInBackend, Context, Options, Partitioners, QuantizerContext, WeightFunction
from etbuild.errors import Problem

_DYNAMIC_WEIGHTS = "force_non_static_weights_for_f32_linear"


class Xnnpack(BuiltInBackend):
    """The backend `xnnpack`."""

    name = "xnnpack"
    separable = True
    compiles_templates = True
    delegate_id = "XnnpackBackend"
    loaded_marker = "executorch.backends.xnnpack.partition.xnnpack_partitioner"
    named_data_is_weights = True
    loads_everywhere = True
    ignores_zero_points = True  # ExecuTorch 1.5
    exact_gelu_only = ("float32",)  # ExecuTorch 1.5

    def weight_functions(self) -> dict[str, WeightFunction]:
        """Returns the functions that pack 4-bit weights, and that check scales and zero points."""
        from executorch.backends.xnnpack.operators import node_visitor, op_quant_dequant

        return {
            "convert_to_qc4w": WeightFunction(node_visitor.NodeVisitor, "convert_to_qc4w", checks=False),
            "validate_quant_scales": WeightFunction(op_quant_dequant, "validate_quant_scales", checks=True),
            "validate_quant_zeropoints": WeightFunction(op_quant_dequant, "validate_quant_zeropoints", checks=True),
        }

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's XnnpackPartitioner with the options of `backend-xnnpack.schema.json`."""
        from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
        from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        arguments = dict(options)
        left_out = arguments.pop("leave_out_configs", ())
        if "configs" in arguments or left_out:  # in ExecuTorch's order: the first one that matches takes a node
            chosen = {*options.get("configs", [each.__name__ for each in ALL_PARTITIONER_CONFIGS])} - {*left_out}
            arguments["configs"] = [config for config in ALL_PARTITIONER_CONFIGS if config.__name__ in chosen]
        if "config_precisions" in arguments:
            arguments["config_precisions"] = [
                ConfigPrecisionType[precision.upper()] for precision in arguments["config_precisions"]
            ]
        return XnnpackPartitioner(**arguments)

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's XNNPACKQuantizer with the options of `quantizer-xnnpack.schema.json`."""
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )

        names = ("act_qmin", "act_qmax", "weight_qmin", "weight_qmax")
        config = get_symmetric_quantization_config(
            is_per_channel=options.get("per_channel", False),
            is_dynamic=options.get("dynamic", False),
            is_qat=context.qat,
            **{name: options[name] for name in names if name in options},
        )
        return XNNPACKQuantizer().set_global(config)

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """A context with the workarounds for XNNPACK on the page of ExecuTorch's limits: in it, XNNPACK makes programs
        that the runtime loads and that compute correct numbers."""
        return workarounds.of_backend(Xnnpack.name).around(partitioners)

    def named_data_keys(self, compiled: bytes) -> set[str]:
        """Returns the keys of the constants that a graph of XNNPACK does not hold itself."""
        from etbuild.files import flatbuffer  # it imports NumPy

        if compiled[4:8] == b"XH00":  # `XNNHeader` of ExecuTorch 1.5: then the place of the graph, and its size
            start = int.from_bytes(compiled[10:14], "little")
            compiled = compiled[start : start + int.from_bytes(compiled[14:18], "little")]
        with flatbuffer.read_once(len(compiled)):
            constants = flatbuffer.tables(flatbuffer.root(compiled), 8)  # `constant_data` of runtime_schema.fbs
            return {flatbuffer.text(each, 2) for each in constants} - {""}  # `named_key`

    def check_options(self, options: Options) -> list[Problem]:
        """Rejects `configs` that are all left out: ExecuTorch would take all kinds of operators."""
        if {*options.get("configs", ["all"])} - {*options.get("leave_out_configs", ())}:
            return []
        return [Problem("nothing would be delegated", ("leave_out_configs",), "leave out fewer, or the partitioner")]

    def check_delegated(self, options: Options, operators: Collection[str]) -> list[Problem]:
        """Rejects convolutions if an option for linear layers is set: the runtime would not load them (ExecuTorch
        1.5)."""
        if not options.get(_DYNAMIC_WEIGHTS) or "aten::convolution" not in operators:
            return []
        message = f"the runtime could not load the program: the method has `{_DYNAMIC_WEIGHTS}` and a convolution"
        return [Problem(message, (_DYNAMIC_WEIGHTS,), "remove the option from this method")]

    def option_for_dtype(self, options: Options, dtype: str) -> Options:
        """Returns the option with which ExecuTorch's partitioner takes bfloat16."""
        return {"enable_bf16": True} if dtype == "bfloat16" and not options.get("enable_bf16") else {}
