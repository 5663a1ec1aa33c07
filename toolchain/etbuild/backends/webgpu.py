"""WebGPU: GPUs in browsers, with graphs in Vulkan's format."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Options
from etbuild.backends.vulkan import partitioner_arguments


class WebGpu(BuiltInBackend):
    """The backend `webgpu`."""

    name = "webgpu"
    separable = False  # not tested whether merged methods have the same bytes as methods lowered together
    delegate_id = "VulkanBackend"
    takes_weight_only_linear = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's WebGPUPartitioner with the options of `backend-webgpu.schema.json`."""
        from executorch.backends.webgpu.partitioner import WebGPUPartitioner

        return WebGPUPartitioner(**partitioner_arguments(options))
