"""Gives each tied tensor of an exported method one input of its graph, with the same name in all methods.

`torch.export` makes an input for each name of a tensor, and reads and writes through one of them. A graph that writes
to a tensor with several inputs cannot be decomposed. Methods share buffers and read named data by name, so that the
name must be the same in all methods.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec


def memory(tensor: torch.Tensor) -> Hashable:
    """The identity of a tensor, which is equal for all names of one tensor.

    Two tensors with equal content have different identities: they may be caches that start with zeros.
    """
    if tensor.numel() == 0:
        return id(tensor)
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def untie(program: ExportedProgram, tensors: Mapping[str, Hashable]) -> None:
    """Leaves one input for each tied tensor, with the last of its names, which `torch.export` reads and writes.

    Args:
        program: The method. It is changed in place.
        tensors: The identity of each parameter and buffer, by name. All names of one tensor have the same identity.
    """
    last = {tensor: name for name, tensor in tensors.items()}
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    kept: dict[str, torch.fx.Node] = {}
    specs: list[InputSpec] = []
    for spec in reversed(program.graph_signature.input_specs):
        if spec.target not in tensors:
            specs.append(spec)
            continue
        name, node = last[tensors[spec.target]], inputs[spec.arg.name]
        if kept.setdefault(name, node) is node:
            persistent = name in program.state_dict if spec.kind is InputKind.BUFFER else None
            specs.append(replace(spec, target=name, persistent=persistent))
        else:
            node.replace_all_uses_with(kept[name])
            program.graph.erase_node(node)
    if len(specs) < len(inputs) or specs[::-1] != program.graph_signature.input_specs:
        program._graph_signature = ExportGraphSignature(specs[::-1], program.graph_signature.output_specs)
        program.graph_module.recompile()
