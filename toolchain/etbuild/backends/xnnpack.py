"""XNNPACK: fp32, bf16 and quantized operators on CPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Options, Partitioners, QuantizerContext
from etbuild.errors import Problem
from etbuild.patching import replaced

_DYNAMIC_WEIGHTS = "force_non_static_weights_for_f32_linear"
_MAX_DIMENSIONS = 6  # XNN_MAX_TENSOR_DIMS: the runtime loads no method with a delegate that has tensors of more


class Xnnpack(BuiltInBackend):
    """The backend `xnnpack`."""

    name = "xnnpack"
    separable = True
    delegate_id = "XnnpackBackend"
    loaded_marker = "executorch.backends.xnnpack.partition.xnnpack_partitioner"
    named_data_is_weights = True
    ignores_zero_points = True  # ExecuTorch 1.5
    exact_gelu_only = ("float32",)  # ExecuTorch 1.5

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's XnnpackPartitioner with the options of `backend-xnnpack.schema.json`."""
        from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
        from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        arguments = dict(options)
        if "configs" in arguments:  # in ExecuTorch's order: the first one that matches takes a node
            chosen = options["configs"]
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
        quantizer = XNNPACKQuantizer().set_global(config)
        chosen, left_out = options.get("modules"), options.get("leave_out", ())

        def quantized(node: Any) -> bool:
            # ExecuTorch also asks about the weights of convolutions, which do not come from a module.
            return node.op == "get_attr" or ((chosen is None or _is_with(node, chosen)) and not _is_of(node, left_out))

        return quantizer.set_filter_function(quantized)

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """Returns a context in which XNNPACK takes no operators of tensors that have more dimensions than it knows, and
        lays out the inputs of dynamically quantized convolutions correctly."""
        return _corrected(partitioners)

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


@contextlib.contextmanager
def _corrected(partitioners: Partitioners) -> Iterator[None]:
    with _without_large_ranks(partitioners), _layouts_of_dynamic_inputs():
        yield


@contextlib.contextmanager
def _without_large_ranks(partitioners: Partitioners) -> Iterator[None]:
    from executorch.exir.backend.canonical_partitioners.config_partitioner import ConfigerationBasedPartitioner

    with contextlib.ExitStack() as changed:
        for partitioner in {id(one): one for own in partitioners.values() for one in own}.values():
            if isinstance(partitioner, ConfigerationBasedPartitioner) and _is_for_xnnpack(partitioner):
                for config in partitioner.target_partitioner_configs.values():
                    check = _of_few_dimensions(config.check_constraints)
                    changed.enter_context(replaced(config, "check_constraints", check))
        yield


@contextlib.contextmanager
def _layouts_of_dynamic_inputs() -> Iterator[None]:
    """Copies the input of a dynamically quantized convolution to channels_last right before it is quantized.

    ExecuTorch's pass copies the input of the whole delegate instead, and the operators in between do not know that.
    They then read its elements in a wrong order, or the runtime refuses their shapes.
    """
    import torch
    from executorch.backends.xnnpack._passes import channels_last_tagged_reshape_pass as layouts
    from executorch.exir.dialects._ops import ops

    of_pass = layouts.ChannelsLastTaggedReshapePass
    original = of_pass.input_to_nhwc

    def input_to_nhwc(self: Any, graph_module: Any, dequantize: Any, target: Any) -> None:
        is_dynamic = layouts.is_dequant(dequantize) and layouts.is_dynamic_qdq(dequantize)
        if not is_dynamic or self.is_nhwc_node(dequantize) or dequantize.args[0].args[0].op != "call_function":
            original(self, graph_module, dequantize, target)
            return
        quantize = dequantize.args[0]
        source = quantize.args[0]
        with graph_module.graph.inserting_after(source):
            copy = self.create_call_function_node(
                graph_module, ops.edge.aten._to_copy.default, (source,), memory_format=torch.channels_last
            )
        self.mark_as_nhwc_node(copy)
        ranges = {each.all_input_nodes[0] for each in quantize.args[1:3]}  # what chooses the scale and the zero point
        for reader in (quantize, *sorted(ranges)):
            reader.replace_input_with(source, copy)

    with replaced(of_pass, "input_to_nhwc", input_to_nhwc):
        yield


def _is_for_xnnpack(partitioner: Any) -> bool:
    return bool(partitioner.delegation_spec.backend_id == Xnnpack.delegate_id)


def _of_few_dimensions(check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Returns a check of an operator that is also false if a tensor has too many dimensions."""

    def checked(node: Any, program: Any) -> bool:
        return all(rank <= _MAX_DIMENSIONS for rank in _ranks(node)) and check(node, program)

    return checked


def _ranks(node: Any) -> Iterator[int]:
    """The numbers of dimensions of an operator's inputs and results."""
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for one in value if isinstance(value, tuple | list) else (value,):
            yield len(getattr(one, "shape", ()))


def _is_with(node: Any, modules: Sequence[str]) -> bool:
    """Returns whether an operator comes from one of these submodules, or is the ReLU after such an operator: ExecuTorch
    quantizes a convolution and its ReLU together or not at all."""
    relu = getattr(node.target, "__name__", "").partition(".")[0] in ("relu", "relu_")
    return _is_of(node, modules) or (relu and _is_of(node.args[0], modules))


def _is_of(node: Any, modules: Sequence[str]) -> bool:
    """Returns whether an operator comes from one of these submodules, or from a submodule inside them."""
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return any(path == name or path.startswith(f"{name}.") for path in stack for name in modules)
