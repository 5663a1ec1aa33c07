"""Reads blocks of llama.cpp that hold integers with one scale for a group, and the zero point zero. Other blocks also
have a float for the smallest value of a group, or take values from tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from etplugins.packed.integers import Integers

Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


def integers(kind: str, rows: Bytes) -> Integers | None:
    """The integers in blocks; None if blocks of this kind hold none.

    Args:
        kind: The name of the kind in llama.cpp, such as `Q8_0`.
        rows: uint8 `[rows, bytes]`.
    """
    read = _KINDS.get(kind)
    return None if read is None else read(torch.from_numpy(rows))


def _q4_0(rows: torch.Tensor) -> Integers:
    blocks = rows.view(len(rows), -1, 18)
    values = torch.cat([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).sub_(8).view(torch.int8)
    return Integers(values.flatten(1), _half(blocks[..., :2]), None, 4)


def _q8_0(rows: torch.Tensor) -> Integers:
    blocks = rows.view(len(rows), -1, 34)
    return Integers(blocks[..., 2:].contiguous().view(torch.int8).flatten(1), _half(blocks[..., :2]), None, 8)


def _q6_k(rows: torch.Tensor) -> Integers:
    from executorch.extension.llm.export.gguf import ExportableGGUFTensor

    tensor = ExportableGGUFTensor.from_raw(rows, "q6_k").to_intx_unpacked_to_int8_tensor(scale_dtype=torch.float32)
    return Integers(tensor.qdata, tensor.scale, None, 6)


def _half(scales: torch.Tensor) -> torch.Tensor:
    return scales.contiguous().view(torch.float16).squeeze(-1).float()


_KINDS: Mapping[str, Callable[[torch.Tensor], Integers]] = {"Q4_0": _q4_0, "Q6_K": _q6_k, "Q8_0": _q8_0}
