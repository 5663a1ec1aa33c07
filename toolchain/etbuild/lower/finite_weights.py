"""Finds weights with elements that are NaN or infinite before methods are lowered."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

from etbuild.lower import named_data
from etbuild.results import NonFiniteWeight

NonFinite = dict[str, NonFiniteWeight]
"""The weights with such elements, by name."""


def non_finite(programs: dict[str, ExportedProgram]) -> NonFinite:
    """Finds the parameters and buffers that methods use and that have elements that are NaN or infinite.

    It does not count -inf in a buffer: attention masks consist of it.

    Args:
        programs: The exported methods by name, with the content of their weights.
    """
    by_name: NonFinite = {}
    # Address and size of the tensors without such elements: methods share most tensors, and each is read once.
    known: set[tuple[int, int]] = set()
    for _, program in sorted(programs.items()):
        parameters = program.graph_signature.inputs_to_parameters
        written = program.graph_signature.buffers_to_mutate.values()
        for node, name in named_data.weights(program):
            tensor = named_data.tensor(program, name)
            memory = tensor.data_ptr(), tensor.nbytes
            unused = not node.users and name not in written
            if unused or name in by_name or memory in known or not _may_have(tensor.dtype):
                continue
            counted = _counted(tensor, "parameter" if node.name in parameters else "buffer")
            if counted["nan"] or counted["infinite"]:
                by_name[name] = counted
            else:
                known.add(memory)
    return by_name


def counted(weights: Mapping[str, torch.Tensor]) -> NonFinite:
    """Finds the parameters among some weights that have elements that are NaN or infinite.

    Args:
        weights: The content of the parameters, by name.
    """
    found = {name: _counted(tensor, "parameter") for name, tensor in weights.items()}
    return {name: each for name, each in found.items() if each["nan"] or each["infinite"]}


def _may_have(dtype: torch.dtype) -> bool:
    """Whether a dtype can represent NaN or infinity. 4-bit floats cannot."""
    return bool((dtype.is_floating_point or dtype.is_complex) and dtype != torch.float4_e2m1fn_x2)


def _counted(tensor: torch.Tensor, kind: str) -> NonFiniteWeight:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.detach().float() if values.element_size() == 1 else values.detach()  # float8 has no comparisons
    none: NonFiniteWeight = {"kind": kind, "nan": 0, "infinite": 0, "elements": tensor.numel()}
    if values.numel() == 0 or bool(torch.isfinite(torch.stack(torch.aminmax(values))).all()):
        return none
    infinite = values.isinf() if kind == "parameter" else values.isposinf()
    return {**none, "nan": int(values.isnan().sum()), "infinite": int(infinite.sum())}
