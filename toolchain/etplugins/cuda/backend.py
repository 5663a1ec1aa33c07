"""CUDA: Nvidia's GPUs, through PyTorch's ahead-of-time Inductor."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Need, Options
from etbuild.backends.needs import package

_TRITON = Need("Triton", "install a CUDA build of torch, which brings it", package("triton"))
_CUDA = Need(
    "Nvidia's CUDA toolkit",
    "install it, and put its `nvcc` on the PATH or set CUDA_HOME to its directory",
    lambda: bool(shutil.which("nvcc")) or Path(os.environ.get("CUDA_HOME") or os.devnull, "bin", "nvcc").exists(),
)


class Cuda(BuiltInBackend):
    """The backend `cuda`."""

    name = "cuda"
    separable = False
    delegate_id = "CudaBackend"
    needs = (_TRITON, _CUDA)
    distributions = ("triton",)
    takes_weight_only_linear = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's CudaPartitioner with the options of `backend-cuda.schema.json`."""
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        texts = {name: value if isinstance(value, str) else "ON" if value else "OFF" for name, value in options.items()}
        specs = [CompileSpec(name, text.encode()) for name, text in sorted(texts.items())]
        return CudaPartitioner([CudaBackend.generate_method_name_compile_spec(context.method), *specs])
