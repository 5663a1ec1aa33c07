"""Vulkan: GPUs; and WebGPU: GPUs in browsers, with graphs in Vulkan's format."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Need, OptionError, Options, QuantizerContext
from etbuild.backends.needs import package

_PARTITIONER_OPTIONS = ("operator_blocklist", "operator_allowlist", "nn_module_blocklist", "nn_module_allowlist")


class Vulkan(BuiltInBackend):
    """The backend `vulkan`."""

    name = "vulkan"
    separable = False  # not tested whether merged methods have the same bytes as methods lowered together
    delegate_id = "VulkanBackend"
    takes_weight_only_linear = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's VulkanPartitioner with the options of `backend-vulkan.schema.json`."""
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        return VulkanPartitioner(**_partitioner_arguments(options))

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's VulkanQuantizer with the options of `quantizer-vulkan.schema.json`."""
        from executorch.backends.vulkan.quantizer.vulkan_quantizer import (
            VulkanQuantizer,
            get_symmetric_quantization_config,
        )

        config = get_symmetric_quantization_config(options.get("dynamic", False), options.get("weight_bits", 8))
        return VulkanQuantizer().set_global(config)


class WebGpu(BuiltInBackend):
    """The backend `webgpu`."""

    name = "webgpu"
    options_of = "vulkan"
    separable = False  # not tested whether merged methods have the same bytes as methods lowered together
    delegate_id = "VulkanBackend"
    takes_weight_only_linear = True
    needs = (
        Need("ExecuTorch 1.5.1", "pip install executorch==1.5.1", package("executorch.backends.webgpu.partitioner")),
    )

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's WebGPUPartitioner with the options of `backend-vulkan.schema.json`."""
        from executorch.backends.webgpu.partitioner import WebGPUPartitioner

        return WebGPUPartitioner(**_partitioner_arguments(options))


def _partitioner_arguments(options: Options) -> dict[str, Any]:
    """Returns the arguments of ExecuTorch's partitioners for Vulkan and WebGPU. Raises OptionError for an unknown
    operator."""
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
    """Returns the edge operator with a name such as `aten.add.Tensor`. The name is the item with this index in an
    option."""
    from executorch.exir.dialects._ops import ops

    operator: Any = ops.edge
    try:
        for part in name.split("."):
            operator = getattr(operator, part)
    except AttributeError:
        hint = "`etbuild build --stop-after to_edge` shows the operators of a method"
        raise OptionError(f"there is no operator `{name}` in the edge dialect", (option, index), hint) from None
    return operator
