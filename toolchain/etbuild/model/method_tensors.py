"""Collects the tensors of methods that have their own: quantized weights, and weights of exported programs.

Methods may have different content under one name, because each method is quantized by itself. Equal tensors with one
name become one tensor for all methods. A tensor that differs gets another name, because named data finds tensors by
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable

import torch
from torch.export import ExportedProgram

from etbuild.model.tensor_bytes import dtype_name, equal
from etbuild.model.tensor_facts import Recipe, TensorFacts, original_name
from etbuild.model.tied_weights import memory

RecipeOf = Callable[[torch.Tensor], Recipe | None]
"""How the content of a tensor is computed later; None if the tensor has its content."""


def name_apart(programs: dict[str, ExportedProgram], recipe_of: RecipeOf = lambda _: None) -> None:
    """Renames a tensor to `NAME@METHOD` if an earlier method has a different tensor with its name.

    Two tensors also differ if the methods tie them to different names: one cache in a method may be two in another.

    Args:
        programs: The methods by name. They are changed in place.
        recipe_of: How the content of tensors is computed.
    """

    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        recipes = recipe_of(one), recipe_of(other)
        return recipes[0] == recipes[1] if any(recipes) else equal(one, other)

    known: dict[str, list[tuple[str, torch.Tensor, Ties]]] = {}  # the variants of each tensor, with their new names
    for method, program in sorted(programs.items()):
        tensors, renamed = _tensors(program), {}
        ties = _ties(tensors)
        for name, tensor in tensors:
            variants = known.setdefault(name, [])
            alike = (own for own, content, of in variants if same(content, tensor) and _agree(name, of, ties))
            own = next(alike, None)
            if own is None:
                own = f"{name}@{method}" if variants else name
                variants.append((own, tensor, ties))
            if own != name:
                renamed[name] = own
        _rename(program, renamed)


Ties = dict[str, set[str]]
"""For each name of a tensor, all names of that tensor in one method."""


def _ties(tensors: list[tuple[str, torch.Tensor]]) -> Ties:
    names: dict[Hashable, set[str]] = {}
    for name, tensor in tensors:
        names.setdefault(memory(tensor), set()).add(name)
    return {name: names[memory(tensor)] for name, tensor in tensors}


def _agree(name: str, one: Ties, other: Ties) -> bool:
    return {each for each in one[name] if each in other} == {each for each in other[name] if each in one}


def carried(
    programs: dict[str, ExportedProgram],
    of_module: Collection[str],
    in_weights: Collection[str] = (),
    recipe_of: RecipeOf = lambda _: None,
) -> tuple[list[TensorFacts], dict[str, torch.Tensor]]:
    """Collects the tensors of methods, in the order of the methods' names.

    Args:
        programs: The methods by name, after `name_apart`.
        of_module: The names of the module's own parameters and buffers.
        in_weights: Those of them whose content comes from weights files.
        recipe_of: How the content of tensors is computed.

    Returns:
        Facts about each tensor, and the tensors by name.
    """
    found: dict[str, TensorFacts] = {}
    content: dict[str, torch.Tensor] = {}
    for _, program in sorted(programs.items()):
        first: dict[Hashable, str] = {}
        for name, tensor in _tensors(program):
            twin = first.get(memory(tensor))
            first.setdefault(memory(tensor), name)
            if name not in found:
                form = dtype_name(tensor.dtype), list(tensor.shape), isinstance(tensor, torch.nn.Parameter)
                before, computed = original_name(name, programs), recipe_of(tensor)
                if before != name and before in in_weights:
                    computed = {"weight": before}
                also = _also(name, before, of_module)
                found[name] = TensorFacts(name, *form, twin, name in in_weights, also, computed=computed)
                content[name] = tensor.detach()
    return list(found.values()), content


def _also(own: str, name: str, of_module: Collection[str]) -> list[str]:
    """Other names by which a pattern finds a tensor, which had the name `name` before `name_apart`.

    These are its original name, and the name of the parameter that it was quantized from. The latter follows from the
    names that torchao and `quantize_method` give. A parameter or buffer of the module was not quantized.
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
