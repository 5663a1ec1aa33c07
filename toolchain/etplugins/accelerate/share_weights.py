"""Gives XNNPACK each delegate's program with the model's own weights instead of a copy.

ExecuTorch deep-copies the programs that it passes to a backend, since the backend may change them. It copies all
delegates before it lowers the first, which makes a second copy of the model. XNNPACK changes graphs, but never a
tensor: it writes results to new tensors.

A copy also drops the rest of a tensor's storage, which XNNPACK would write out otherwise. So only tensors that fill
their storage are shared. Others are copied as before.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from torch.export import ExportedProgram

from etbuild.patching import replacing


@replacing(XnnpackBackend, "copy_exported_program_for_preprocess")
def share_weights(program: ExportedProgram, compile_specs: list[Any]) -> ExportedProgram:
    """A copy of a program, with its own weights."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    return copy.deepcopy(program, {id(tensor): tensor for tensor in tensors if _fills_its_storage(tensor)})


def _fills_its_storage(tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.is_contiguous()
        and bool(tensor.untyped_storage().nbytes() == tensor.nbytes)
    )
