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

from etbuild.tensors import TensorFacts, dtype_name, equal
from etbuild.tied import memory


@dataclass
class Carried:
    """What the methods hold.

    Attributes:
        tensors: Each tensor once.
        content: By name.
    """

    tensors: list[TensorFacts] = field(default_factory=list)
    content: dict[str, torch.Tensor] = field(default_factory=dict)


def carried(programs: dict[str, ExportedProgram], of_module: Collection[str]) -> Carried:
    """The content of methods, in the order of their names.

    Args:
        programs: The methods. What has other content in an earlier one is called `NAME@METHOD` in them afterwards.
        of_module: The names of the module's own parameters and buffers.
    """
    facts: dict[str, TensorFacts] = {}
    content: dict[str, torch.Tensor] = {}
    known: dict[str, list[str]] = {}  # by the name in a method, the names of what methods have under it
    for method, program in sorted(programs.items()):
        first: dict[Hashable, str] = {}
        renamed: dict[str, str] = {}
        for name, tensor in _tensors(program):
            twin, variants = first.get(memory(tensor)), known.setdefault(name, [])
            same = (v for v in variants if facts[v].same_as == twin and equal(content[v], tensor))
            key = next(same, f"{name}@{method}" if variants else name)
            first.setdefault(memory(tensor), key)
            if key not in facts:
                variants.append(key)
                form = dtype_name(tensor), list(tensor.shape), isinstance(tensor, torch.nn.Parameter)
                facts[key] = TensorFacts(key, *form, twin, False, _also(key, name, of_module))
                content[key] = tensor.detach()
            if key != name:
                renamed[name] = key
        _rename(program, renamed)
    return Carried(list(facts.values()), content)


def _also(key: str, name: str, of_module: Collection[str]) -> list[str]:
    """Other names by which a pattern finds a tensor: in its method, and of the parameter that it was made of, from the
    names that torchao and `quantize_method` give. What is a parameter or buffer of the module was made of none.
    """
    names = [name] if key != name else []
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
