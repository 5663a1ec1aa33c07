"""Vulkan and WebGPU: GPUs, by graphs of one format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etbuild.backends.backend import Context, OptionError, Options

_PARTITIONER_OPTIONS = ("operator_blocklist", "operator_allowlist", "nn_module_blocklist", "nn_module_allowlist")


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's VulkanPartitioner with the options of `backend-vulkan.schema.json`."""
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

    del context
    return VulkanPartitioner(**_arguments(options))


def create_webgpu(options: Options, context: Context) -> Any:
    """ExecuTorch's WebGPUPartitioner with the options of `backend-webgpu.schema.json`."""
    from executorch.backends.webgpu.partitioner import WebGPUPartitioner

    del context
    return WebGPUPartitioner(**_arguments(options))


def _arguments(options: Options) -> dict[str, Any]:
    from executorch.backends.vulkan.serialization.vulkan_graph_schema import VkMemoryLayout, VkStorageType

    compiled = {name: value for name, value in options.items() if name not in _PARTITIONER_OPTIONS}
    for name, kind in (("storage_type_override", VkStorageType), ("memory_layout_override", VkMemoryLayout)):
        if name in compiled:
            compiled[name] = kind[compiled[name]]
    lists = {name: list(options[name]) for name in _PARTITIONER_OPTIONS if name in options}
    for name in ("operator_blocklist", "operator_allowlist"):
        if name in lists:
            lists[name] = [_operator(operator, name, index) for index, operator in enumerate(lists[name])]
    return {"compile_options": compiled, **lists}


def _operator(name: str, option: str, index: int) -> Any:
    """The edge operator that an option calls `aten.add.Tensor`, at this index.

    Raises:
        OptionError: There is none.
    """
    from executorch.exir.dialects._ops import ops

    found: Any = ops.edge
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        hint = "`etbuild build --stop-after to_edge` shows the operators of a method"
        raise OptionError(f"there is no operator `{name}` in the edge dialect", (option, index), hint) from None
    return found


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's VulkanQuantizer with the options of `quantizer-vulkan.schema.json`."""
    from executorch.backends.vulkan.quantizer.vulkan_quantizer import (
        VulkanQuantizer,
        get_symmetric_quantization_config,
    )

    del load_callable
    config = get_symmetric_quantization_config(options.get("dynamic", False), options.get("weight_bits", 8))
    return VulkanQuantizer().set_global(config)
