"""Finds weights with elements that are NaN or infinite, before methods are lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from etbuild.model.tensor_bytes import Promised
from etbuild.results import NonFiniteWeight

if TYPE_CHECKING:
    from torch.export import ExportedProgram

NonFinite = dict[str, NonFiniteWeight]
"""The weights with such elements, by name."""


def kinds(programs: Mapping[str, ExportedProgram]) -> dict[str, str]:
    """The weights that methods use, by name: whether each is a `parameter` or a `buffer`.

    Args:
        programs: The exported methods by name.
    """
    from etbuild.lower import named_data

    return {
        name: "parameter" if node.name in program.graph_signature.inputs_to_parameters else "buffer"
        for _, program in sorted(programs.items(), reverse=True)  # the first method that uses a weight decides its kind
        for node, name in named_data.weights(program)
        if node.users or name in program.graph_signature.buffers_to_mutate.values()
    }


def non_finite(programs: Mapping[str, ExportedProgram]) -> NonFinite:
    """Finds the weights of methods with elements that are NaN or infinite.

    Args:
        programs: The exported methods by name, with the content of their weights.
    """
    from etbuild.lower import named_data

    content = {
        name: named_data.tensor(program, name)
        for program in programs.values()
        for _, name in named_data.weights(program)
    }
    return counted(content, kinds(programs))


def counted(weights: Mapping[str, torch.Tensor], of_kind: Mapping[str, str] | None = None) -> NonFinite:
    """Finds the weights that have elements that are NaN or infinite.

    Ignores -inf in a buffer: attention masks consist of it.

    Args:
        weights: The content of the weights, by name.
        of_kind: The names of the weights to look at, each with its kind (`kinds`). None: all, as parameters.
    """
    found: NonFinite = {}
    # The tensors without such elements, by address and size: methods share most tensors, and each is read once. If the
    # memory of one was freed, another one may have its address.
    known: dict[tuple[int, int], StorageWeakRef] = {}
    for name, kind in sorted((dict.fromkeys(weights, "parameter") if of_kind is None else of_kind).items()):
        tensor = weights[name]
        if isinstance(tensor, Promised):
            continue  # they are counted when they have their content
        memory = tensor.data_ptr(), tensor.nbytes
        if (memory not in known or known[memory].expired()) and _may_have(tensor.dtype):
            of_tensor = _counted(tensor, kind)
            if of_tensor["nan"] or of_tensor["infinite"]:
                found[name] = of_tensor
            else:
                known[memory] = StorageWeakRef(tensor.untyped_storage())
    return found


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
