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
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def memory(tensor: torch.Tensor) -> Hashable:
    """The identity of a tensor, which is equal for all names of one tensor.

    Two tensors with equal content have different identities: they may be caches that start with zeros.
    """
    if tensor.numel() == 0:
        return id(tensor)
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def overlapping(tensors: Mapping[str, torch.Tensor]) -> dict[str, set[str]]:
    """Finds tensors that share a part of their memory with other tensors. Two names of one tensor do not count.

    Args:
        tensors: The tensors by name.

    Returns:
        The names of the others, for each of them.
    """
    extents = {name: extent for name, tensor in tensors.items() if (extent := addresses(tensor))}
    found: dict[str, set[str]] = {}
    before: list[str] = []  # those that may reach beyond the beginning of the next one
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].start, item[1].stop)):
        before = [other for other in before if extents[other].stop > extent.start]
        for other in before:
            if memory(tensors[name]) != memory(tensors[other]) and _share_elements(tensors[name], tensors[other]):
                found.setdefault(name, set()).add(other)
                found.setdefault(other, set()).add(name)
        before.append(name)
    return found


def addresses(tensor: torch.Tensor) -> range:
    """The addresses of the content of a tensor; an empty range if it has no memory of its own."""
    if is_traceable_wrapper_subclass(tensor) or tensor.is_meta or tensor.numel() == 0:
        return range(0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize)


def _share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors whose extents meet have an element in common, which those of `x[::2]` and `x[1::2]` have
    not."""
    storage = one.untyped_storage()
    if one.dtype != other.dtype or storage.data_ptr() != other.untyped_storage().data_ptr():
        return True  # they are not seen as parts of one tensor
    first = min(one.storage_offset(), other.storage_offset())
    start = storage.data_ptr() + first * one.itemsize
    end = max(addresses(each).stop for each in (one, other))
    marks = torch.zeros((end - start) // one.itemsize, dtype=torch.bool)
    marks.as_strided(one.shape, one.stride(), one.storage_offset() - first).fill_(True)
    return bool(marks.as_strided(other.shape, other.stride(), other.storage_offset() - first).any())


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
