"""XNNPACK: fp32, bf16 and quantized operators on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etbuild.backends.backend import Context, Options


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's XnnpackPartitioner with the options of `backend-xnnpack.schema.json`."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    del context
    arguments = dict(options)
    if "configs" in arguments:  # in ExecuTorch's order: the first that matches takes a node
        arguments["configs"] = [config for config in ALL_PARTITIONER_CONFIGS if config.__name__ in options["configs"]]
    if "config_precisions" in arguments:
        arguments["config_precisions"] = [
            ConfigPrecisionType[precision.upper()] for precision in arguments["config_precisions"]
        ]
    return XnnpackPartitioner(**arguments)


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's XNNPACKQuantizer with the options of `quantizer-xnnpack.schema.json`, and `qat`."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    del load_callable
    ranges = {name: options[name] for name in ("act_qmin", "act_qmax", "weight_qmin", "weight_qmax") if name in options}
    config = get_symmetric_quantization_config(
        is_per_channel=options.get("per_channel", False),
        is_dynamic=options.get("dynamic", False),
        is_qat=options["qat"],
        **ranges,
    )
    quantizer = XNNPACKQuantizer().set_global(config)
    chosen, left_out = options.get("modules"), options.get("leave_out", ())

    def quantized(node: Any) -> bool:
        # ExecuTorch asks about the weights of convolutions too, which come from no module.
        return node.op == "get_attr" or ((chosen is None or _is_with(node, chosen)) and not _is_of(node, left_out))

    return quantizer.set_filter_function(quantized)


def _is_with(node: Any, modules: Sequence[str]) -> bool:
    """Whether an operator comes from one of these submodules, or is the ReLU of one that does: of a convolution with a
    ReLU ExecuTorch quantizes both or neither."""
    relu = getattr(node.target, "__name__", "").partition(".")[0] in ("relu", "relu_")
    return _is_of(node, modules) or (relu and _is_of(node.args[0], modules))


def _is_of(node: Any, modules: Sequence[str]) -> bool:
    """Whether an operator comes from one of these submodules, or from one inside of them."""
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return any(path == name or path.startswith(f"{name}.") for path in stack for name in modules)
