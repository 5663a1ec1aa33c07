"""Where lowered methods keep the weights that they read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from etbuild import releases
from etbuild.backends.coreml import model_files
from etbuild.lower import named_data
from etbuild.lower.weight_sharing import Place, identity

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer
    from executorch.exir._serialize._named_data_store import NamedDataStoreOutput


class Digests:
    """Digests of tensors and blobs that outlive this, each worked out once: methods have many of them in common."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], tuple[str, bool]] = {}
        self._blobs: dict[int, str] = {}

    def weight(self, name: str, tensor: torch.Tensor) -> str:
        """What stands for a weight: see `sharing.identity`."""
        digest, uniform = self._tensor(tensor)
        return identity(digest, name if uniform else None)

    def _tensor(self, tensor: torch.Tensor) -> tuple[str, bool]:
        """The digest of what a tensor holds, in the order of its elements, and whether these are all equal."""
        contiguous = tensor.detach().contiguous()
        if contiguous.data_ptr() != tensor.data_ptr():
            return _described_content(contiguous)  # of a copy, whose address is free again afterwards
        place = contiguous.data_ptr(), contiguous.nbytes
        if place not in self._tensors:
            self._tensors[place] = _described_content(contiguous)
        return self._tensors[place]

    def blob(self, blob: CordBuffer) -> str:
        """The digest of a blob, which may lie in a file."""
        if releases.is_file_backed(blob):
            return releases.sha256_of(blob).hex()
        if id(blob) not in self._blobs:
            self._blobs[id(blob)] = releases.sha256_of(blob).hex()
        return self._blobs[id(blob)]


def _described_content(contiguous: torch.Tensor) -> tuple[str, bool]:
    content = contiguous.view(-1).view(torch.uint8)
    elements = content.view(-1, contiguous.element_size())
    uniform = len(elements) == 0 or bool(
        torch.equal(elements[0], elements[-1]) and torch.equal(elements, elements[:1].expand_as(elements))
    )
    return hashlib.sha256(memoryview(content.numpy())).hexdigest(), uniform


def weight_places(program: ExportedProgram, digests: Digests) -> list[Place]:
    """The places of a method: its portable operators, and each delegate in the graph's order.

    Args:
        program: The lowered method, with the content of its weights.
        digests: Of all methods.
    """
    written = set(program.graph_signature.buffers_to_mutate.values())
    portable = {
        name: named_data.tensor(program, name)
        for node, name in named_data.weights(program)
        if node.users and name not in written
    }
    delegates = [_delegate(delegate, digests) for delegate in named_data.delegates(program.graph_module)]
    return [Place("", "", 0, {}, _described(portable, digests)), *delegates]


def _delegate(delegate: LoweredBackendModule, digests: Digests) -> Place:
    program = delegate.original_module
    written = set(program.graph_signature.buffers_to_mutate.values())
    read = {name: named_data.tensor(program, name) for _, name in named_data.weights(program) if name not in written}
    described = _described(read, digests)
    compiled, output = delegate.processed_bytes, delegate.named_data_store_output
    if delegate.backend_id == "CoreMLBackend" and output is not None:
        found = model_files.reference(compiled)
        if found is not None:
            return _function_of_core_ml(*found, output, described)
    blobs = {digests.blob(blob): len(blob) for blob in (output.buffers if output is not None else ())}
    stored = len(compiled) + sum(blobs.values())
    return Place(delegate.backend_id, digests.blob(compiled), stored, blobs, described)


def _function_of_core_ml(
    key: str, function: str, output: NamedDataStoreOutput, weights: dict[str, tuple[str, int]]
) -> Place:
    """A function of one of Core ML's models: what it reads of the model's file stands for blobs.

    A module has numbers of 32 bits, which Core ML mostly keeps in 16: sizes are given as they are in the module.
    """
    model = bytes(output.buffers[output.pte_data[key].buffer_index])
    blobs, stored = {}, 0
    for place, (kind, count) in model_files.weights(model, function).items():
        stored += -(-count * model_files.bits(kind) // 8)
        blobs[f"{key} {place}"] = count * (4 if kind in ("FLOAT16", "FLOAT32") else 1)
    return Place("CoreMLBackend", f"{key} {function}", stored, blobs, weights)


def _described(weights: dict[str, torch.Tensor], digests: Digests) -> dict[str, tuple[str, int]]:
    described: dict[str, tuple[str, int]] = {}
    for name, weight in sorted(weights.items()):
        described.setdefault(digests.weight(name, weight), (name, weight.nbytes))
    return described
