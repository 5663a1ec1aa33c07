"""CUDA and Metal: PyTorch's ahead-of-time Inductor, for Nvidia's and Apple's GPUs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from etbuild.backends.backend import Context, Need, Options
from etbuild.backends.needs import package

TRITON = Need("Triton", "install a CUDA build of torch, which brings it", package("triton"))
CUDA = Need(
    "Nvidia's CUDA toolkit",
    "install it, and put its `nvcc` on the PATH or set CUDA_HOME to its directory",
    lambda: bool(shutil.which("nvcc")) or Path(os.environ.get("CUDA_HOME") or os.devnull, "bin", "nvcc").exists(),
)
MACOS = Need("macOS with Apple's Metal tools", "lower this program on a Mac", lambda: sys.platform == "darwin")


def create_cuda(options: Options, context: Context) -> Any:
    """ExecuTorch's CudaPartitioner with the options of `backend-cuda.schema.json`."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    specs = [CompileSpec(name, _value(value)) for name, value in sorted(options.items())]
    return CudaPartitioner([CudaBackend.generate_method_name_compile_spec(context.method), *specs])


def create_metal(options: Options, context: Context) -> Any:
    """ExecuTorch's MetalPartitioner with the options of `backend-metal.schema.json`."""
    from executorch.backends.apple.metal.metal_backend import MetalBackend
    from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

    del options
    return MetalPartitioner([MetalBackend.generate_method_name_compile_spec(context.method)])


def _value(value: bool | str) -> bytes:
    return (("ON" if value else "OFF") if isinstance(value, bool) else value).encode()
