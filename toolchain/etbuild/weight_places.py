"""Where lowered methods keep the weights that they read."""

from __future__ import annotations

import hashlib

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from etbuild import named_data
from etbuild.sharing import Place

Digests = dict[tuple[int, int], str]
"""Of tensors by address and size: methods that are lowered together read the same tensors."""


def weight_places(program: ExportedProgram, digests: Digests) -> list[Place]:
    """The places of a method: its portable operators, and each delegate in the graph's order.

    Args:
        program: The lowered method, with the content of its weights.
        digests: Of tensors that live as long as this; new ones are added.
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
    blobs = named_data.sizes(delegate)
    compiled = delegate.processed_bytes
    return Place(
        delegate.backend_id,
        hashlib.sha256(compiled).hexdigest(),
        len(compiled) + sum(blobs.values()),
        blobs,
        _described(read, digests),
    )


def _described(weights: dict[str, torch.Tensor], digests: Digests) -> dict[str, tuple[str, int]]:
    described: dict[str, tuple[str, int]] = {}
    for name, weight in sorted(weights.items()):
        described.setdefault(_digest(weight, digests), (name, weight.nbytes))
    return described


def _digest(weight: torch.Tensor, digests: Digests) -> str:
    contiguous = weight.detach().contiguous()
    known = (contiguous.data_ptr(), contiguous.nbytes)
    if contiguous.data_ptr() != weight.data_ptr() or known not in digests:
        content = contiguous.view(-1).view(torch.uint8).numpy()
        digest = hashlib.sha256(memoryview(content)).hexdigest()
        if contiguous.data_ptr() != weight.data_ptr():  # a copy, whose address is free again afterwards
            return digest
        digests[known] = digest
    return digests[known]
