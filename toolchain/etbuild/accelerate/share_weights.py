"""Gives XNNPACK each delegate's program with the model's own weights, and not with a copy of them.

ExecuTorch deep-copies what it hands to a backend, in case that the backend changes it, and all delegates before the
first is lowered: a second copy of the model. XNNPACK changes graphs and never a tensor; what it makes of one is new.

A copy also leaves behind what else lies in a tensor's storage, all of which XNNPACK would write out. So tensors are
shared that fill their storage, and others are copied as before.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from torch.export import ExportedProgram

from etbuild.patching import replaced


def _copy(cls: type, program: ExportedProgram, compile_specs: list[Any]) -> ExportedProgram:
    del cls, compile_specs
    tensors = [*program.state_dict.values(), *program.constants.values()]
    return copy.deepcopy(program, {id(tensor): tensor for tensor in tensors if _fills_its_storage(tensor)})


def _fills_its_storage(tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.is_contiguous()
        and bool(tensor.untyped_storage().nbytes() == tensor.nbytes)
    )


@contextlib.contextmanager
def share_weights() -> Iterator[None]:
    """XNNPACK lowers without copies of weights inside."""
    with replaced(XnnpackBackend, "copy_exported_program_for_preprocess", classmethod(_copy)):
        yield
