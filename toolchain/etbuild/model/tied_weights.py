"""Gives each tied tensor of an exported method one input of its graph, with the same name in all methods.

`torch.export` makes an input for each name of a tensor, and reads and writes through one of these inputs. A graph that
writes to a tensor with several inputs cannot be decomposed. All methods must use the same name, because they share
buffers and read named data by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def memory(tensor: torch.Tensor) -> Hashable:
    """The identity of a tensor, which is the same for all its names.

    Tensors with equal content have different identities: for example, two caches that begin with zeros.
    """
    if not addresses(tensor):
        return id(tensor)
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def overlapping(tensors: Mapping[str, torch.Tensor]) -> dict[str, set[str]]:
    """Finds tensors that share a part of their memory with other tensors. Two names of one tensor do not count.

    Args:
        tensors: The tensors by name.

    Returns:
        For each such tensor by name, the names of the tensors with which it shares memory.
    """
    extents = {name: extent for name, tensor in tensors.items() if (extent := addresses(tensor))}
    overlaps: dict[str, set[str]] = {}
    earlier: list[str] = []  # tensors that may end after the next tensor begins
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].start, item[1].stop)):
        earlier = [other for other in earlier if extents[other].stop > extent.start]
        for other in earlier:
            if memory(tensors[name]) != memory(tensors[other]) and _share_elements(tensors[name], tensors[other]):
                overlaps.setdefault(name, set()).add(other)
                overlaps.setdefault(other, set()).add(name)
        earlier.append(name)
    return overlaps


def addresses(tensor: torch.Tensor) -> range:
    """The addresses of a tensor's content; an empty range for a tensor without memory of its own."""
    if is_traceable_wrapper_subclass(tensor) or tensor.is_meta or tensor.numel() == 0:
        return range(0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize)


def _share_elements(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors whose address ranges overlap have an element in common. `x[::2]` and `x[1::2]` have none."""
    storage = first.untyped_storage()
    if first.dtype != second.dtype or storage.data_ptr() != second.untyped_storage().data_ptr():
        return True  # to be safe, as their elements cannot be compared by index
    first_element = min(first.storage_offset(), second.storage_offset())
    start = storage.data_ptr() + first_element * first.itemsize
    end = max(addresses(tensor).stop for tensor in (first, second))
    marks = torch.zeros((end - start) // first.itemsize, dtype=torch.bool)
    marks.as_strided(first.shape, first.stride(), first.storage_offset() - first_element).fill_(True)
    return bool(marks.as_strided(second.shape, second.stride(), second.storage_offset() - first_element).any())


def untie(program: ExportedProgram, tensors: Mapping[str, Hashable]) -> None:
    """Leaves one input for each tied tensor: that of its last name, through which `torch.export` reads and writes.

    Args:
        program: The method. It is changed in place.
        tensors: The identity of each parameter and buffer, by name. All names of one tensor have the same identity.
    """
    last = {tensor: name for name, tensor in tensors.items()}
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    nodes_by_name: dict[str, torch.fx.Node] = {}
    specs: list[InputSpec] = []
    for spec in reversed(program.graph_signature.input_specs):
        if spec.target not in tensors:
            specs.append(spec)
            continue
        name, node = last[tensors[spec.target]], inputs[spec.arg.name]
        if nodes_by_name.setdefault(name, node) is node:
            persistent = name in program.state_dict if spec.kind is InputKind.BUFFER else None
            specs.append(replace(spec, target=name, persistent=persistent))
        else:
            node.replace_all_uses_with(nodes_by_name[name])
            program.graph.erase_node(node)
    if len(specs) < len(inputs) or specs[::-1] != program.graph_signature.input_specs:
        program._graph_signature = ExportGraphSignature(specs[::-1], program.graph_signature.output_specs)
        program.graph_module.recompile()
