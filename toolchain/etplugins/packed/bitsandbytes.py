"""bitsandbytes: 4-bit indexes of a table, with a scale for each block of neighbours, and integers of 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from etbuild.files import json_file
from etplugins.packed.integers import Integers
from etplugins.packed.layout import Layout, Parts

_STATE_ENDS = (".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4")
_NESTED_ENDS = (".weight.nested_absmax", ".weight.nested_quant_map")
_LARGEST = 127


def layouts(config: Mapping[str, Any]) -> list[Layout]:
    """The layouts of bitsandbytes."""
    needed = (".weight.absmax", ".weight.quant_map", ".weight")
    return [
        Layout(
            needed,
            lambda parts: [int(size) for size in _state(parts)["shape"]],
            _table_values,
            (*_NESTED_ENDS, *_STATE_ENDS),
        ),
        Layout((".SCB", ".weight"), lambda parts: parts.form(".weight")[1], _integers, (".weight_format",)),
    ]


def _state(parts: Parts) -> Any:
    """The JSON object that the library writes as text in a tensor of bytes."""
    return json_file.parse(bytes(next(parts[end] for end in _STATE_ENDS if end in parts).tolist()))


def _table_values(parts: Parts) -> torch.Tensor:
    state, scales = _state(parts), parts[".weight.absmax"]
    if _NESTED_ENDS[0] in parts:  # the scales are indexes of a table too
        scales = _scaled_values(parts[_NESTED_ENDS[1]], scales, parts[_NESTED_ENDS[0]], state["nested_blocksize"])
        scales += state["nested_offset"]
    pairs = parts[".weight"].flatten()
    numbers = torch.stack([pairs >> 4, pairs & 15], -1).flatten()[: torch.Size(state["shape"]).numel()]
    return _scaled_values(parts[".weight.quant_map"], numbers, scales, state["blocksize"]).view(state["shape"])


def _scaled_values(table: torch.Tensor, numbers: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    values = table.float()[numbers.int()]
    block = min(block, max(1, len(values)))
    if len(scales) != -(-len(values) // block):
        raise ValueError(f"{len(values)} numbers in blocks of {block} have {len(scales)} scales")
    return values * scales.float().repeat_interleave(block)[: len(values)]


def _integers(parts: Parts) -> Integers:
    return Integers(parts[".weight"].view(torch.int8), (parts[".SCB"].float() / _LARGEST)[:, None], None, 8)
