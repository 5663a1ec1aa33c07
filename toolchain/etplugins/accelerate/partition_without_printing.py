"""Partitions a method without printing its graph. For each delegate, ExecuTorch formats a debug message with the whole
module, even if debug messages are off."""

from __future__ import annotations

from typing import Any

from executorch.exir.backend import backend_api
from torch.fx import GraphModule

from etbuild.patching import replaced, replacing

_partition = backend_api._create_partitions_in_graph_module


@replacing(backend_api, "_create_partitions_in_graph_module")
def partition_without_printing(*arguments: Any, **keywords: Any) -> Any:
    """Partitions a module."""
    with replaced(GraphModule, "__str__", object.__repr__):
        return _partition(*arguments, **keywords)
