"""The functions that steps call for LoRA adapters: see `etbuild.steps.method_change`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from etplugins.lora.layers import applied, attach
from etplugins.lora.weights import check_weights, read_weights

if TYPE_CHECKING:
    from etbuild.emit.emitted import Emitted

__all__ = ["applied", "attach", "check_emitted", "check_weights", "filled", "read_weights"]


def check_emitted(programs: Mapping[str, ExportedProgram], names: Collection[str]) -> Callable[[Emitted], None]:
    """Returns a check of emitted methods. Imports ExecuTorch, which an export does not need."""
    from etplugins.lora import emission

    return emission.check_emitted(programs, names)


def filled(parts: Sequence[Emitted], weights: Mapping[str, torch.Tensor]) -> Sequence[Emitted]:
    """Fills the weights of adapters into emitted methods."""
    from etplugins.lora import emission

    return emission.filled(parts, weights)
