"""Finds the readers of the weights of lowered methods, and how they keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from etbuild import backends, releases
from etbuild.lower import blob_weights, named_data
from etbuild.lower.weight_sharing import MadeOf, WeightReader, identity
from etbuild.model.tensor_bytes import Promised, flat_bytes, is_uniform

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer


class Digests:
    """Computes the digest of each tensor and blob once, because methods share many of them.

    Tensors and blobs must live longer than this object, because it knows them by their addresses.
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], tuple[str, bool]] = {}
        self._blobs: dict[int, str] = {}

    def weight(self, name: str, tensor: torch.Tensor) -> str:
        """The identity of a weight: see `weight_sharing.identity`. Without content, a weight has its name in it, and
        binding removes the name if the elements differ.

        Args:
            name: Its name in the module.
            tensor: Its content.
        """
        digest, uniform = self._tensor(tensor)
        return identity(digest, name if uniform else None)

    def content(self, tensor: torch.Tensor) -> str:
        """The digest of a tensor's elements in their logical order, in hex."""
        return self._tensor(tensor)[0]

    def _tensor(self, tensor: torch.Tensor) -> tuple[str, bool]:
        """The digest of a tensor's elements in their logical order, and whether all elements are equal."""
        if isinstance(tensor, Promised):
            return releases.sha256_of(tensor.promise()).hex(), True
        content = flat_bytes(tensor)
        if content.data_ptr() != tensor.data_ptr():
            return _described_content(content, tensor.element_size())  # a later tensor may get this copy's address
        memory = content.data_ptr(), content.nbytes
        if memory not in self._tensors:
            self._tensors[memory] = _described_content(content, tensor.element_size())
        return self._tensors[memory]

    def blob(self, blob: CordBuffer) -> str:
        """The digest of a blob, which may be in a file."""
        if releases.is_file_backed(blob):
            return releases.sha256_of(blob).hex()
        if id(blob) not in self._blobs:
            self._blobs[id(blob)] = releases.sha256_of(blob).hex()
        return self._blobs[id(blob)]


def _described_content(content: torch.Tensor, element_size: int) -> tuple[str, bool]:
    return hashlib.sha256(memoryview(content.numpy())).hexdigest(), is_uniform(content, element_size)


def weight_readers(program: ExportedProgram, digests: Digests, named: Collection[str]) -> list[WeightReader]:
    """The readers of a method: its portable operators, then each delegate in the graph's order.

    Args:
        program: The lowered method, with the content of its weights.
        digests: The digests that all methods of the program share.
        named: The backends that the plan names.

    Raises:
        InputError: A backend from another package raised an error.
    """
    written = set(program.graph_signature.buffers_to_mutate.values())
    portable = {
        name: named_data.tensor(program, name)
        for node, name in named_data.weights(program)
        if node.users and name not in written
    }
    delegates = [_delegate(delegate, digests, named) for delegate in named_data.delegates(program.graph_module)]
    return [WeightReader("", "", 0, {}, _described(portable, digests), _by_digest(program, digests)), *delegates]


def _delegate(delegate: LoweredBackendModule, digests: Digests, named: Collection[str]) -> WeightReader:
    program = delegate.original_module
    written = set(program.graph_signature.buffers_to_mutate.values())
    read = {name: named_data.tensor(program, name) for _, name in named_data.weights(program) if name not in written}
    described, made_of = _described(read, digests), blob_weights.of_delegate(delegate)
    if made_of is None:
        made_of = _by_digest(program, digests)
    compiled, output = delegate.processed_bytes, delegate.named_data_store_output
    storage = backends.stored_weights(delegate.backend_id, compiled, output, named)
    if storage is not None:
        size = storage.size - sum(storage.blobs.values())
        return WeightReader(delegate.backend_id, storage.program, size, storage.blobs, described, made_of)
    blobs = {digests.blob(blob): len(blob) for blob in (output.buffers if output is not None else ())}
    return WeightReader(delegate.backend_id, digests.blob(compiled), len(compiled), blobs, described, made_of)


def _by_digest(program: ExportedProgram, digests: Digests) -> MadeOf:
    """The weights that the constants of a method or a delegate are made of, by digest."""
    signature = program.graph_signature
    targets = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target is not None}
    made_of: MadeOf = {}
    for node in program.graph.find_nodes(op="placeholder"):
        origin, name = blob_weights.origin(program, node), targets.get(node.name)
        if origin and name is not None and name not in signature.buffers_to_mutate.values():
            made_of.setdefault(digests.content(named_data.tensor(program, name)), set()).add(origin)
    return made_of


def _described(weights: dict[str, torch.Tensor], digests: Digests) -> dict[str, tuple[str, int]]:
    described: dict[str, tuple[str, int]] = {}
    for name, weight in sorted(weights.items()):
        described.setdefault(digests.weight(name, weight), (name, weight.nbytes))
    return described
