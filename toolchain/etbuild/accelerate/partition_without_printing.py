"""Partitions a method without printing its graph: ExecuTorch formats a debug message with the whole module for each
delegate, even if debug messages are off."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from executorch.exir.backend import backend_api
from torch.fx import GraphModule

from etbuild.patching import replaced

_partition = backend_api._create_partitions_in_graph_module


def _partition_without_printing(*arguments: Any, **keywords: Any) -> Any:
    with replaced(GraphModule, "__str__", object.__repr__):
        return _partition(*arguments, **keywords)


def partition_without_printing() -> AbstractContextManager[None]:
    """Returns a context manager in which ExecuTorch does not print the modules that it partitions."""
    return replaced(backend_api, "_create_partitions_in_graph_module", _partition_without_printing)
