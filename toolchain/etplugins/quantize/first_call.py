"""Compares what a method computes before and after it is prepared for quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from etbuild.errors import BuildError, DocumentPath

_FOLDED = (
    "torchao folds batch norms into convolutions: use each convolution with one batch norm only, or write `quantize: "
    "null` for this method"
)
_IN_32_BITS = (
    "the passes of this quantizer compute integers of 64 bits in 32 bits, and on copies of them: compute them outside "
    "of the method, or take another quantizer, such as `xnnpack`"
)


def results(
    graph_module: GraphModule, batch: tuple[Any, ...], before: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Runs a method. Returns its outputs, and the buffers that it changes, by their names in messages.

    Args:
        graph_module: The graph of the method.
        batch: Its positional inputs. They keep their content.
        before: The content of the buffers that the method may write to.
    """
    inputs = pytree.tree_map_only(torch.Tensor, torch.clone, batch)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        outputs = pytree.tree_leaves(graph_module(*inputs))
    found = {f"output {index}": each for index, each in enumerate(outputs) if isinstance(each, torch.Tensor)}
    for name, buffer in graph_module.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            found[f"`{name}`"] = buffer
    return {name: tensor.clone() for name, tensor in found.items()}


def check_unchanged(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], path: DocumentPath) -> None:
    """Fails if preparing a method changed its outputs or what it writes to buffers, although observers change no
    values.

    torchao folds a batch norm into its convolution even if the convolution has a second batch norm elsewhere, as in the
    heads of some detectors. Arm's quantizers compute integers of 64 bits in 32 bits.
    """
    for name, old in before.items():
        new = after.get(name)
        if new is None or new.dtype != old.dtype or _differs(old, new):
            way = _FOLDED if old.is_floating_point() else _IN_32_BITS
            raise BuildError.at(path, f"preparing the method changes {name} before anything is quantized", way)


def _differs(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether rounding does not explain a difference. Never if the old numbers are not finite."""
    numbers, error = old.double(), (new.double() - old.double()).abs()
    is_known = bool(numbers.isfinite().all()) and error.numel() > 0
    return is_known and bool(error.norm() > 0.1 * numbers.norm()) and float(error.max()) > 1e-3
