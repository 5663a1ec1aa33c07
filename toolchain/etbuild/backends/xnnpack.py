"""XNNPACK: fp32, bf16 and quantized operators on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def create(options: dict[str, Any], load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's XnnpackPartitioner with the options of `backend-xnnpack.schema.json`."""
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    del load_callable
    arguments = dict(options)
    if "config_precisions" in arguments:
        arguments["config_precisions"] = [
            ConfigPrecisionType[precision.upper()] for precision in arguments["config_precisions"]
        ]
    return XnnpackPartitioner(**arguments)
