"""The content of an export that carries its own: weights that were quantized, or that came with an exported program.

Methods may have different content under one name, since each is quantized by itself. What is equal under one name is
one tensor for all of them; what is not gets a name of its own in the methods that have it, as named data goes by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram

from etbuild.model.tied_weights import memory
from etbuild.model.weights_files import TensorFacts, dtype_name, equal


@dataclass
class Carried:
    """What the methods hold.

    Attributes:
        tensors: Each tensor once.
        content: By name.
    """

    tensors: list[TensorFacts] = field(default_factory=list)
    content: dict[str, torch.Tensor] = field(default_factory=dict)


def name_apart(programs: dict[str, ExportedProgram]) -> None:
    """Gives what a method has under a name, and an earlier one with other content, the name `NAME@METHOD`.

    So too where they tie it to others of the names that both have: what is one cache in one may be two in another.
    """
    known: dict[str, list[tuple[str, torch.Tensor, Ties]]] = {}  # by name: what methods have, and its own names
    for method, program in sorted(programs.items()):
        tensors, renamed = _tensors(program), {}
        ties = _ties(tensors)
        for name, tensor in tensors:
            variants = known.setdefault(name, [])
            same = (own for own, content, of in variants if equal(content, tensor) and _agree(name, of, ties))
            own = next(same, None)
            if own is None:
                own = f"{name}@{method}" if variants else name
                variants.append((own, tensor, ties))
            if own != name:
                renamed[name] = own
        _rename(program, renamed)


Ties = dict[str, set[str]]
"""By name of a tensor, all the names that it has in one method."""


def _ties(tensors: list[tuple[str, torch.Tensor]]) -> Ties:
    names: dict[Hashable, set[str]] = {}
    for name, tensor in tensors:
        names.setdefault(memory(tensor), set()).add(name)
    return {name: names[memory(tensor)] for name, tensor in tensors}


def _agree(name: str, one: Ties, other: Ties) -> bool:
    return {each for each in one[name] if each in other} == {each for each in other[name] if each in one}


def original_name(name: str, methods: Collection[str]) -> str:
    """The name that a tensor had before `name_apart`."""
    original, _, method = name.rpartition("@")
    return original if method in methods else name


def carried(programs: dict[str, ExportedProgram], of_module: Collection[str]) -> Carried:
    """The content of methods, in the order of their names.

    Args:
        programs: The methods, after `name_apart`.
        of_module: The names of the module's own parameters and buffers.
    """
    found: dict[str, TensorFacts] = {}
    content: dict[str, torch.Tensor] = {}
    for _, program in sorted(programs.items()):
        first: dict[Hashable, str] = {}
        for name, tensor in _tensors(program):
            twin = first.get(memory(tensor))
            first.setdefault(memory(tensor), name)
            if name not in found:
                form = dtype_name(tensor), list(tensor.shape), isinstance(tensor, torch.nn.Parameter)
                also = _also(name, original_name(name, programs), of_module)
                found[name] = TensorFacts(name, *form, twin, False, also)
                content[name] = tensor.detach()
    return Carried(list(found.values()), content)


def _also(own: str, name: str, of_module: Collection[str]) -> list[str]:
    """Other names by which a pattern finds a tensor: in its method, and of the parameter that it was made of, from the
    names that torchao and `quantize_method` give. What is a parameter or buffer of the module was made of none.
    """
    names = [name] if own != name else []
    if name not in of_module:
        layer = re.sub(r"\.parametrizations\.(\w+)\.original\d+$", r".\1", name)
        parameter = re.sub(r"_(quantized|scale|zero_point)(_\d+)?$", "", layer)
        names += [parameter] if parameter in of_module else [layer] if layer != name else []
    return names


def _tensors(program: ExportedProgram) -> list[tuple[str, torch.Tensor]]:
    held = {**program.state_dict, **program.constants}
    return [(name, value) for name, value in held.items() if isinstance(value, torch.Tensor)]


def _rename(program: ExportedProgram, names: dict[str, str]) -> None:
    for tensors in (program._state_dict, program._constants):
        held = {names.get(name, name): value for name, value in tensors.items()}
        tensors.clear()
        tensors.update(held)
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        if spec.target is not None:
            spec.target = names.get(spec.target, spec.target)
