"""Quantizes large weights in parts of some rows. torchao needs several times the memory of what it quantizes at once.

With one scale for a group of a row, no row depends on another one, so that the parts have the same bits as the whole.
There is one exception: HQQ stops when no scale of the whole weight changes much. So each part runs until its scales do
not change at all, and notes in which rounds they changed little. A part runs again if it ran more rounds than the whole
weight would have.
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

_AT_ONCE = 1 << 18  # elements: torchao's temporary tensors of so many stay in the processor's cache
HQQ = "_choose_qparams_and_quantize_scale_only_hqq"
"""The name of torchao's function for HQQ in `workflow`."""
_TOLERANCE = 1e-5  # that of torchao's function


class _Rounds:
    """Takes the place of the tolerance of HQQ. Notes for each round whether the scales of all parts changed less than
    the tolerance, and the number of rounds that each part ran."""

    def __init__(self) -> None:
        self.small: list[bool] = []
        self.ran: list[int] = []

    def __gt__(self, change: torch.Tensor) -> bool:
        """Whether a part stops after a round, in which this was the largest change of a scale.

        Without a change, the part stays as it is in all later rounds.
        """
        if self.ran[-1] == len(self.small):
            self.small.append(True)
        self.small[self.ran[-1]] &= bool(change < _TOLERANCE)
        self.ran[-1] += 1
        return bool(change == 0)

    @property
    def of_whole(self) -> int:
        """The number of rounds of the whole weight."""
        return self.small.index(True) + 1 if True in self.small else len(self.small)


@contextlib.contextmanager
def by_rows() -> Iterator[None]:
    """Returns a context manager in which torchao quantizes large weights in parts."""
    whole, hqq = IntxUnpackedToInt8Tensor.from_hp, getattr(workflow, HQQ, None)
    if hqq is None or not releases.fitting():
        yield
        return

    def from_hp(hp_tensor: torch.Tensor, block_size: Any, target_dtype: torch.dtype, **options: Any) -> Any:
        parts = _parts(hp_tensor, block_size)
        if len(parts) == 1 or options.get("custom_scale") is not None:
            return whole(hp_tensor, block_size, target_dtype, **options)
        rounds = _Rounds()

        def converted(part: torch.Tensor, **how: int) -> Any:
            rounds.ran.append(0)
            with replaced(workflow, HQQ, functools.partial(hqq, early_stop_tol=rounds, **how)):
                return whole(part, block_size, target_dtype, **options)

        quantized = [converted(part) for part in parts]
        needed = rounds.of_whole
        for number, part in enumerate(parts):
            if rounds.ran[number] > needed:
                quantized[number] = converted(part, iters=needed)
        return _joined(quantized)

    with replaced(IntxUnpackedToInt8Tensor, "from_hp", staticmethod(from_hp)):
        yield


def _parts(weight: torch.Tensor, block_size: Any) -> tuple[torch.Tensor, ...]:
    """A weight in parts of similar sizes, of two rows at least: PyTorch sums up a single row in another order."""
    if weight.dim() != 2 or block_size[0] != 1 or not weight.numel():
        return (weight,)
    rows = max(2, _AT_ONCE // weight.shape[1])
    split: tuple[torch.Tensor, ...] = weight.tensor_split(max(1, len(weight) // rows))
    return split


def _joined(parts: list[Any]) -> Any:
    def content(name: str) -> torch.Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    first = parts[0]
    attributes = {name: getattr(first, name) for name in first.tensor_attribute_names}
    return type(first)(**{name: content(name) for name in first.tensor_data_names}, **attributes)
