"""The parts that Arm's three backends share: packages, passes of the partitioner, and the quantizer's options."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import Options
from etbuild.backends.needs import extra

TOSA_TOOLS = extra("ethos-u", "Arm's tosa-tools", "tosa_serializer")
DISTRIBUTIONS = ("ethos-u-vela", "ml-dtypes", "tosa-tools")
_COMMON = ("passes", "preserve_io_quantization")


def own_options(options: Options) -> Options:
    """Returns the options that are not shared: the arguments of the backend's own compile spec."""
    return {name: value for name, value in options.items() if name not in _COMMON}


def with_common_options(spec: Any, options: Options) -> Any:
    """Sets the options that all three backends share.

    Args:
        spec: One of ExecuTorch's compile specs for Arm. It is changed.
        options: The options of the partitioner.

    Returns:
        The compile spec.
    """
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig

    if options.get("preserve_io_quantization"):
        spec._set_preserve_io_quantization(True)
    if "passes" in options:
        wanted = spec._get_pass_pipeline_config().to_dict()
        chosen = {name: value.upper() if isinstance(value, str) else value for name, value in options["passes"].items()}
        spec.set_pass_pipeline_config(ArmPassPipelineConfig.from_dict({**wanted, **chosen}))
    return spec


def configured(quantizer: Any, options: Options, qat: bool) -> Any:
    """Sets which modules a quantizer quantizes, and how.

    Args:
        quantizer: One of ExecuTorch's quantizers for Arm. It is changed.
        options: The options of the quantizer.
        qat: Whether the method is trained with simulated quantization.

    Returns:
        The quantizer.
    """
    from executorch.backends.arm.quantizer import (
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
    )

    chosen = {
        "is_per_channel": options.get("per_channel", True),
        "is_qat": qat,
        "is_dynamic": options.get("dynamic", False),
    }
    if options.get("activations") == "int16":
        config = get_symmetric_a16w8_quantization_config(**chosen)
    elif options.get("weights") == "int4":
        config = get_symmetric_quantization_config(**chosen, weight_qmin=-7, weight_qmax=7)
    else:
        config = get_symmetric_quantization_config(**chosen)
    for name in options.get("modules", []):
        quantizer.set_module_name(name, config)
    for name in options.get("leave_out", []):
        quantizer.set_module_name(name, None)
    return quantizer if "modules" in options else quantizer.set_global(config)
