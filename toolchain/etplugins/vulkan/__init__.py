"""Vulkan: GPUs; and WebGPU: GPUs in browsers, with graphs in Vulkan's format."""
