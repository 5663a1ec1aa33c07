"""bitsandbytes: numbers of a table in 4 bits, with a scale for each block of neighbours, and integers of 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from etbuild.files import json_file
from etbuild.model.packed.integers import Integers
from etbuild.model.packed.layout import Layout, Parts

_STATES = (".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4")
_NESTED = (".weight.nested_absmax", ".weight.nested_quant_map")
_LARGEST = 127


def layouts(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of bitsandbytes."""
    four = (".weight.absmax", ".weight.quant_map", ".weight")
    return [
        Layout(four, lambda parts: [int(size) for size in _state(parts)["shape"]], _of_table, (*_NESTED, *_STATES)),
        Layout((".SCB", ".weight"), lambda parts: parts.form(".weight")[1], _integers, (".weight_format",)),
    ]


def _state(parts: Parts) -> Any:
    """What the library writes as text in a tensor of bytes."""
    return json_file.parse(bytes(next(parts[end] for end in _STATES if end in parts).tolist()))


def _of_table(parts: Parts) -> torch.Tensor:
    state, scales = _state(parts), parts[".weight.absmax"]
    if _NESTED[0] in parts:  # the scales are numbers of a table too
        scales = _looked_up(parts[_NESTED[1]], scales, parts[_NESTED[0]], state["nested_blocksize"])
        scales += state["nested_offset"]
    pairs = parts[".weight"].flatten()
    numbers = torch.stack([pairs >> 4, pairs & 15], -1).flatten()[: torch.Size(state["shape"]).numel()]
    return _looked_up(parts[".weight.quant_map"], numbers, scales, state["blocksize"]).view(state["shape"])


def _looked_up(table: torch.Tensor, numbers: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    found = table.float()[numbers.int()]
    block = min(block, max(1, len(found)))
    if len(scales) != -(-len(found) // block):
        raise ValueError(f"{len(found)} numbers in blocks of {block} have {len(scales)} scales")
    return found * scales.float().repeat_interleave(block)[: len(found)]


def _integers(parts: Parts) -> Integers:
    return Integers(parts[".weight"].view(torch.int8), (parts[".SCB"].float() / _LARGEST)[:, None], None, 8)
