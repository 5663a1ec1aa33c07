"""Checks backends of other packages that claim to be `separable`.

The claim is wrong if ExecuTorch's class of the backend looks at all methods of a call, or if its result for a partition
depends on what it compiled before. A build would then give different bytes with `--jobs 2` than with `--jobs 1`.
"""

from __future__ import annotations

import copy
from typing import Any

from executorch.exir import EdgeProgramManager
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from etbuild import backends, releases
from etbuild.backends.backend import LOOP
from etbuild.errors import BuildError, DocumentPath
from etbuild.exception_text import summary
from etbuild.lower import named_data
from etbuild.lower.preprocess_results import backend_class


def looks_at_all_methods(kind: type[BackendDetails]) -> bool:
    """Whether a backend or its base class overrides `preprocess_multimethod` to look at all methods.

    An override that only calls `preprocess` for each partition does not count.
    """
    name = "preprocess_multimethod"
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return owner is not BackendDetails and not hasattr(getattr(vars(owner)[name], "__func__", None), LOOP)


class Claims:
    """The partitioners of one lowering whose backends come from other packages and claim to be `separable`."""

    def __init__(self) -> None:
        self._by_delegate: dict[tuple[str, str], tuple[str, DocumentPath]] = {}

    def watched(self, partitioner: Partitioner, backend: str, method: str, path: DocumentPath) -> Partitioner:
        """Returns a copy of a partitioner that records the backends of its partitions.

        The copy raises a BuildError during partitioning if one of these backends looks at all methods.

        Args:
            partitioner: The partitioner.
            backend: The name of its backend in the manifest.
            method: The method that it is for.
            path: Its document path.
        """

        def partition_and_check(program: ExportedProgram) -> PartitionResult:
            result: PartitionResult = partitioner.partition(program)
            for backend_id in sorted({spec.backend_id for spec in result.partition_tags.values()}):
                kind = backend_class(backend_id)
                if kind is not None and looks_at_all_methods(kind):
                    message = f"`{backend_id}` has a `preprocess_multimethod` of its own, which gets all methods"
                    hint = f"{_INSTEAD}, or remove `preprocess_multimethod`"
                    raise BuildError.at(path, f"{_claim(backend)}, but {message}", f"change the package: {hint}")
                self._by_delegate.setdefault((method, backend_id), (backend, path))
            return result

        looked_at = copy.copy(partitioner)
        looked_at.partition = partition_and_check
        return looked_at

    def check(self, edge: EdgeProgramManager) -> None:
        """Compiles the smallest partition of each backend again, and compares the results.

        Args:
            edge: The lowered methods, as ExecuTorch returned them.

        Raises:
            BuildError: A backend gives a different result, or fails.
        """
        claimed: dict[str, list[tuple[LoweredBackendModule, str, DocumentPath]]] = {}
        for (method, backend_id), claim in sorted(self._by_delegate.items()):
            for delegate in named_data.delegates(edge.exported_program(method).graph_module):
                if delegate.backend_id == backend_id:
                    claimed.setdefault(backend_id, []).append((delegate, *claim))
        for several in claimed.values():
            delegate, backend, path = min(several, key=lambda each: len(each[0].original_module.graph.nodes))
            what = _what_differs(delegate)
            if what is not None:
                hint = f"change the package: make `preprocess` depend only on its arguments, or {_INSTEAD}"
                raise BuildError.at(path, f"{_claim(backend)}, but `{delegate.backend_id}` {what}", hint)


_INSTEAD = "write `separable = False` in its `Backend`"
_DIFFERENT = "gave different bytes for the same partition: it is not deterministic, or it remembers what it compiled"


def _what_differs(delegate: LoweredBackendModule) -> str | None:
    kind = backend_class(delegate.backend_id)
    assert kind is not None
    program, specs = delegate.original_module, delegate.compile_specs
    try:
        again = kind.preprocess(kind.copy_exported_program_for_preprocess(program, specs), copy.deepcopy(specs))
    except Exception as error:  # noqa: BLE001 - a package may raise any exception
        return f"failed when it compiled a partition for the second time: {summary(error)}"
    same = releases.sha256_of(again.processed_bytes) == releases.sha256_of(delegate.processed_bytes)
    same = same and _named_data(again.data_store_output) == _named_data(delegate.named_data_store_output)
    return None if same else _DIFFERENT


def _named_data(output: Any) -> dict[str, bytes]:
    """The digest of each blob, by key."""
    if output is None:
        return {}
    entries = {**output.pte_data, **{key: entry for of in output.external_data.values() for key, entry in of.items()}}
    return {key: releases.sha256_of(output.buffers[entry.buffer_index]) for key, entry in entries.items()}


def _claim(backend: str) -> str:
    return f"the backend `{backend}` of the package `{backends.owner(backend)}` says that it is `separable`"
