"""ExecuTorch's own portable graph runtime."""

from __future__ import annotations

from typing import Any

from etbuild.backends.backend import Context, Options


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's NativePartitioner with the options of `backend-native.schema.json`.

    Its weights go where `named_data` sends them, as those of all backends do, and not to a tag of its own.
    """
    from executorch.backends.native.partitioner import NativePartitioner

    del options, context
    return NativePartitioner(external_constants_tag=None)
