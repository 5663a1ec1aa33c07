"""Quantizes large weights in parts of some rows. torchao needs several times the memory of a tensor that it quantizes.

If each group of a row has its own scale, rows do not depend on each other. So the parts have the same bits as the
whole. HQQ is an exception: it stops in the first round in which all scales of the weight change little. So each part
runs until its scales do not change at all, and notes the rounds with little change. From the notes follows how many
rounds the whole weight needs. A part that ran more rounds runs again with this number.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.intx import intx_unpacked_to_int8_tensor as workflow

from etbuild import releases
from etbuild.patching import replaced

_PART_SIZE = 1 << 18  # elements: torchao's temporary tensors of this size stay in the processor's cache
HQQ = "_choose_qparams_and_quantize_scale_only_hqq"
"""The name of torchao's function for HQQ in `workflow`."""
_TOLERANCE = 1e-5  # of a change: the default of torchao's function


class _Rounds:
    """Replaces the tolerance of HQQ, to note the rounds of all parts.

    Attributes:
        are_small: For each round, whether the scales of all parts changed less than the tolerance.
        ran: The number of rounds of each part.
    """

    def __init__(self) -> None:
        self.are_small: list[bool] = []
        self.ran: list[int] = []

    def __gt__(self, change: torch.Tensor) -> bool:
        """Whether a part stops after a round. `change` is the largest change of a scale in the round.

        A part stops when no scale changes: later rounds would change nothing either.
        """
        if self.ran[-1] == len(self.are_small):
            self.are_small.append(True)
        self.are_small[self.ran[-1]] &= bool(change < _TOLERANCE)
        self.ran[-1] += 1
        return bool(change == 0)

    @property
    def of_whole(self) -> int:
        """The number of rounds of the whole weight."""
        return self.are_small.index(True) + 1 if True in self.are_small else len(self.are_small)


@contextlib.contextmanager
def by_rows() -> Iterator[None]:
    """Lets torchao quantize large weights in parts within this context."""
    quantize_whole, hqq = IntxUnpackedToInt8Tensor.from_hp, getattr(workflow, HQQ, None)
    if hqq is None or not releases.fitting():
        yield
        return

    def from_hp(hp_tensor: torch.Tensor, block_size: Any, target_dtype: torch.dtype, **options: Any) -> Any:
        parts = _parts(hp_tensor, block_size)
        if len(parts) == 1 or options.get("custom_scale") is not None:
            return quantize_whole(hp_tensor, block_size, target_dtype, **options)
        rounds = _Rounds()

        def quantized_part(part: torch.Tensor, **options_of_hqq: int) -> Any:
            rounds.ran.append(0)
            with replaced(workflow, HQQ, functools.partial(hqq, early_stop_tol=rounds, **options_of_hqq)):
                return quantize_whole(part, block_size, target_dtype, **options)

        quantized = [quantized_part(part) for part in parts]
        rounds_of_whole = rounds.of_whole
        for number, part in enumerate(parts):
            if rounds.ran[number] > rounds_of_whole:
                quantized[number] = quantized_part(part, iters=rounds_of_whole)
        return _joined(quantized)

    with replaced(IntxUnpackedToInt8Tensor, "from_hp", staticmethod(from_hp)):
        yield


def _parts(weight: torch.Tensor, block_size: Any) -> tuple[torch.Tensor, ...]:
    """Splits a weight into similar parts of at least two rows: PyTorch adds up a single row in another order."""
    if weight.dim() != 2 or block_size[0] != 1 or not weight.numel():
        return (weight,)
    rows = max(2, _PART_SIZE // weight.shape[1])
    split: tuple[torch.Tensor, ...] = weight.tensor_split(max(1, len(weight) // rows))
    return split


def _joined(parts: list[Any]) -> Any:
    def content(name: str) -> torch.Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    first = parts[0]
    attributes = {name: getattr(first, name) for name in first.tensor_attribute_names}
    return type(first)(**{name: content(name) for name in first.tensor_data_names}, **attributes)
