"""The content of an export that carries its own: weights that were quantized, or that came with an exported program.

Methods may have different content under one name, since each is quantized by itself. What is equal under one name is
one tensor for all of them; of the rest each method keeps its own, under a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram

from etbuild.tensors import TensorFacts, dtype_name, equal
from etbuild.tied import memory


@dataclass
class Carried:
    """What the methods hold.

    Attributes:
        tensors: Each tensor once. Of those that another method has with other content the name is `NAME@METHOD`.
        content: By these names.
        own: By method, the names of those that are its own, by their names in the method.
    """

    tensors: list[TensorFacts] = field(default_factory=list)
    content: dict[str, torch.Tensor] = field(default_factory=dict)
    own: dict[str, dict[str, str]] = field(default_factory=dict)


def carried(programs: dict[str, ExportedProgram]) -> Carried:
    """The content of methods, in the order of their names."""
    found = Carried()
    facts: dict[str, TensorFacts] = {}
    for method, program in sorted(programs.items()):
        first: dict[Hashable, str] = {}
        for name, tensor in _tensors(program):
            twin = first.get(memory(tensor))
            key = name if name not in facts else _key(name, tensor, twin, facts[name], found.content[name], method)
            first.setdefault(memory(tensor), key)
            if key != name:
                found.own.setdefault(method, {})[name] = key
            if key not in facts:
                parameter = isinstance(tensor, torch.nn.Parameter)
                form = dtype_name(tensor), list(tensor.shape)
                facts[key] = TensorFacts(key, *form, parameter, twin, False, _made_of(name))
                found.content[key] = tensor.detach()
    found.tensors = list(facts.values())
    return found


def _made_of(name: str) -> str | None:
    """The parameter that a tensor was made of, from the names that torchao and `quantize_method` give."""
    before = re.sub(r"\.parametrizations\.(\w+)\.original\d+$", r".\1", name)
    before = re.sub(r"_(quantized|scale|zero_point)(_\d+)?$", "", before)
    return None if before == name else before


def _tensors(program: ExportedProgram) -> list[tuple[str, torch.Tensor]]:
    held = {**program.state_dict, **program.constants}
    return [(name, value) for name, value in held.items() if isinstance(value, torch.Tensor)]


def _key(
    name: str, tensor: torch.Tensor, twin: str | None, known: TensorFacts, content: torch.Tensor, method: str
) -> str:
    return name if known.same_as == twin and equal(content, tensor) else f"{name}@{method}"
