"""ExecuTorch's portable operators, which run everything that no backend takes; and its portable graph runtime."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import BuiltInBackend, Context, Need, Options
from etbuild.backends.needs import package


class Portable(BuiltInBackend):
    """The backend `portable`. It delegates nothing, and has no options."""

    name = "portable"
    separable = True
    compiles_templates = True
    takes_the_rest = True


class Native(BuiltInBackend):
    """The backend `native`."""

    name = "native"
    separable = True
    delegate_id = "NativeBackend"
    needs = (Need("ExecuTorch 1.5.1", "pip install executorch==1.5.1", package("executorch.backends.native")),)

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's NativePartitioner, which has no options.

        `named_data` of the manifest decides where its weights are stored; the backend gets no tag of its own.
        """
        from executorch.backends.native.partitioner import NativePartitioner

        return NativePartitioner(external_constants_tag=None)
