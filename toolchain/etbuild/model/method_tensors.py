"""Collects tensors of methods that are not the module's own: quantized weights, and weights of exported programs.

Methods may have different content under one name, because each method is quantized by itself. Equal tensors with one
name become one tensor for all methods. A different tensor gets another name, because named data uses names.
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
"""Returns the recipe to compute the content of a tensor later; None if the tensor has its content."""


def rename_differing(programs: dict[str, ExportedProgram], recipe_of: RecipeOf = lambda _: None) -> None:
    """Renames a tensor to `NAME@METHOD` if an earlier method has a different tensor of the same name.

    Tensors also differ if the methods tie them to different names: a cache of one method may be two in another method.

    Args:
        programs: The methods by name. They are changed in place.
        recipe_of: Returns the recipe for the content of a tensor, or None.
    """

    def is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
        recipes = recipe_of(first), recipe_of(second)
        return recipes[0] == recipes[1] if any(recipes) else equal(first, second)

    variants_of: dict[str, list[tuple[str, torch.Tensor, Ties]]] = {}  # by name: the variants with their new names
    for method, program in sorted(programs.items()):
        tensors, renamed = _tensors(program), {}
        ties = _ties(tensors)
        for name, tensor in tensors:
            variants = variants_of.setdefault(name, [])
            equal_variants = (
                variant
                for variant, content, other_ties in variants
                if is_same(content, tensor) and _are_tied_alike(name, other_ties, ties)
            )
            new_name = next(equal_variants, None)
            if new_name is None:
                new_name = f"{name}@{method}" if variants else name
                variants.append((new_name, tensor, ties))
            if new_name != name:
                renamed[name] = new_name
        _rename(program, renamed)


Ties = dict[str, set[str]]
"""For each name of a tensor, all names of that tensor in one method."""


def _ties(tensors: list[tuple[str, torch.Tensor]]) -> Ties:
    names: dict[Hashable, set[str]] = {}
    for name, tensor in tensors:
        names.setdefault(memory(tensor), set()).add(name)
    return {name: names[memory(tensor)] for name, tensor in tensors}


def _are_tied_alike(name: str, first: Ties, second: Ties) -> bool:
    """Whether two methods tie a tensor to the same names, as far as both methods have them."""
    return first[name] & second.keys() == second[name] & first.keys()


def carried(
    programs: dict[str, ExportedProgram],
    module_names: Collection[str],
    in_weights: Collection[str] = (),
    recipe_of: RecipeOf = lambda _: None,
) -> tuple[list[TensorFacts], dict[str, torch.Tensor]]:
    """Collects the tensors of methods, in the order of the methods' names.

    Args:
        programs: The methods by name, after `rename_differing`.
        module_names: The names of the module's own parameters and buffers.
        in_weights: The names among them whose content comes from weights files.
        recipe_of: Returns the recipe for the content of a tensor, or None.

    Returns:
        Facts about each tensor, and the tensors by name.
    """
    facts: dict[str, TensorFacts] = {}
    content: dict[str, torch.Tensor] = {}
    for _, program in sorted(programs.items()):
        first: dict[Hashable, str] = {}
        for name, tensor in _tensors(program):
            twin = first.get(memory(tensor))
            first.setdefault(memory(tensor), name)
            if name not in facts:
                form = dtype_name(tensor.dtype), list(tensor.shape), isinstance(tensor, torch.nn.Parameter)
                original, computed = original_name(name, programs), recipe_of(tensor)
                if original != name and original in in_weights:
                    computed = {"weight": original}
                also = _other_names(name, original, module_names)
                facts[name] = TensorFacts(name, *form, twin, name in in_weights, also, computed=computed)
                content[name] = tensor.detach()
    return list(facts.values()), content


def _other_names(new_name: str, name: str, module_names: Collection[str]) -> list[str]:
    """Other names by which a pattern finds a tensor: the one before `rename_differing`, and the original parameter's.

    The original parameter is the one that the tensor was quantized from. Its name follows from the names that torchao
    and `quantize_method` give. A parameter or buffer of the module itself was not quantized.
    """
    names = [name] if new_name != name else []
    if name not in module_names:
        layer = re.sub(r"(^|\.)parametrizations\.(\w+)\.original\d+$", r"\1\2", name)
        parameter = re.sub(r"_(quantized|scale|zero_point)(_\d+)?$", "", layer)
        names += [parameter] if parameter in module_names else [layer] if layer != name else []
    return names


def _tensors(program: ExportedProgram) -> list[tuple[str, torch.Tensor]]:
    contents = {**program.state_dict, **program.constants}
    return [(name, value) for name, value in contents.items() if isinstance(value, torch.Tensor)]


def _rename(program: ExportedProgram, names: dict[str, str]) -> None:
    for tensors in (program._state_dict, program._constants):
        renamed = {names.get(name, name): value for name, value in tensors.items()}
        tensors.clear()
        tensors.update(renamed)
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        if spec.target is not None:
            spec.target = names.get(spec.target, spec.target)
