"""Metal: Apple's GPUs, through PyTorch's ahead-of-time Inductor."""

from __future__ import annotations

import sys
from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Need, Options

_MACOS = Need("macOS with Apple's Metal tools", "lower this program on a Mac", lambda: sys.platform == "darwin")


class Metal(BuiltInBackend):
    """The backend `metal`."""

    name = "metal"
    separable = True
    delegate_id = "MetalBackend"
    needs = (_MACOS,)
    takes_weight_only_linear = True

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's MetalPartitioner, which has no options."""
        from executorch.backends.apple.metal.metal_backend import MetalBackend
        from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

        return MetalPartitioner([MetalBackend.generate_method_name_compile_spec(context.method)])
