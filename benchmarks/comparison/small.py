"""Small models for mutations.py with what the gallery has little of: state, integers, ties, limits, sizes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Json = dict[str, Any]


class Counter(nn.Module):
    """Counts calls, and adds the running sum of what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("total", torch.zeros(4))
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: float32 [1, 4] -> the mean of all calls, float32 [4]; their number, int64 [1]"""
        self.calls.add_(1)
        self.total.add_((x * self.scale).sum(0))
        return self.total / self.calls, self.calls + 0


class Stream(nn.Module):
    """A causal convolution that keeps the last five frames."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(1, 4, 5))
        self.conv = nn.Conv1d(4, 6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [1, 4, 1] -> float32 [1, 6, 1]"""
        window = torch.cat([self.past, x], 2)
        self.past.copy_(window[:, :, 1:])
        return F.gelu(self.conv(window))


class Cache(nn.Module):
    """One head of attention over a cache of 16 keys and values, at a position that the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("keys", torch.zeros(16, 8))
        self.register_buffer("values", torch.zeros(16, 8))
        self.register_buffer("rows", torch.arange(16), persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """x: float32 [1, 8]; position: int64 [1] -> float32 [1, 8]"""
        self.keys.index_copy_(0, position, self.key(x))
        self.values.index_copy_(0, position, self.value(x))
        scores = self.query(x) @ self.keys.T / 8**0.5
        scores = scores.masked_fill(self.rows > position, -1e9)
        return scores.softmax(-1) @ self.values


class Tagger(nn.Module):
    """Tags of words, from an embedding and a pooled mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.layer = nn.Linear(8, 5)

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """words, mask: int64 [1, length] -> the best tag of each word, int64 [1, length]; scores, float32 [1, 5]"""
        hidden = self.norm(self.words(words))
        scores = self.layer(hidden)
        weights = mask.unsqueeze(-1).to(scores.dtype)
        pooled = (scores * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return scores.argmax(-1), pooled


class Buckets(nn.Module):
    """Distances in buckets, as relative positions have them."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(17, 4)

    def forward(self, distance: Tensor) -> Tensor:
        """distance: int64 [1, length] -> float32 [1, length, 4]"""
        near = torch.div(distance, 4, rounding_mode="floor").clamp(-8, 8)
        bucket = torch.where(distance.abs() < 6, distance.remainder(6), near)
        return self.bias((bucket + 8).clamp(0, 16))


class Pixels(nn.Module):
    """A convolution over bytes, normalized in the program, with limits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pool = nn.AvgPool2d(3, stride=2, padding=1)
        self.layer = nn.Linear(8, 6)

    def forward(self, image: Tensor) -> Tensor:
        """image: float32 [1, 3, height, width], from 0 to 255 -> float32 [1, 6]"""
        x = (image / 255 - 0.45) / 0.23
        x = F.relu6(self.conv(x))
        x = F.hardswish(self.depthwise(x))
        x = self.pool(x).mean((2, 3))
        return self.layer(x).clamp(-10, 10)


class Grid(nn.Module):
    """A convolution with two sizes that are not known."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [1, 2, height, width] -> float32 [1, 4, height, width]"""
        return torch.tanh(self.norm(self.conv(x)))


class Recurrent(nn.Module):
    """A GRU over a sequence of any length, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.layer = nn.Linear(8, 3)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [1, 6, 6] -> float32 [1, 3]"""
        _, last = self.gru(x)
        return self.layer(self.norm(last[0])).log_softmax(-1)


class Attention(nn.Module):
    """A block of a transformer, of any length and batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ends = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [batch, length, 16] -> the same"""
        batch, length, _ = x.shape
        query, key, value = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, 16))
        return x + self.down(F.silu(self.up(self.ends(x))))


class Layers(nn.Module):
    """Two layers, to be quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [1, 32] -> float32 [1, 8]"""
        return self.second(F.relu(self.first(x)))


class Convolutions(nn.Module):
    """Convolutions with channels of several magnitudes, to be quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.layer = nn.Linear(8, 10)
        with torch.no_grad():
            self.first.weight.mul_(torch.logspace(-1, 0.5, 8)[:, None, None, None])

    def forward(self, image: Tensor) -> Tensor:
        """image: float32 [1, 3, 16, 16] -> float32 [1, 10]"""
        x = F.relu(self.second(F.relu(self.first(image))))
        return self.layer(x.mean((2, 3)))


class TwoMethods(nn.Module):
    """A state that one method writes and another one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(8, 4))
        self.layer = nn.Linear(4, 4)

    def write(self, x: Tensor, place: Tensor) -> Tensor:
        """x: float32 [1, 4]; place: int64 [1] -> float32 [1, 4]"""
        made = self.layer(x)
        self.memory.index_copy_(0, place, made)
        return made

    def read(self, query: Tensor) -> Tensor:
        """query: float32 [1, 4] -> float32 [1, 8]"""
        return query @ self.memory.T


def calibration() -> list[tuple[Tensor]]:
    """Images for the calibration of `Convolutions`."""
    return [(torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed)),) for seed in range(3)]


def vectors() -> list[tuple[Tensor]]:
    """Inputs for the calibration of `Layers`."""
    return [(torch.randn(1, 32, generator=torch.Generator().manual_seed(seed)),) for seed in range(8)]


@dataclass(frozen=True)
class Small:
    """A small model.

    Attributes:
        factory: The name of its class.
        methods: Its methods.
        keys: More keys of its manifest.
        partitioners: Those of all methods.
    """

    factory: str
    methods: Json
    keys: Json = field(default_factory=dict)
    partitioners: Sequence[str] = ("xnnpack",)


def _forward(*inputs: Json, **keys: Any) -> Json:
    return {"forward": {"example_inputs": list(inputs), **keys}}


def _int8(calibration: str) -> Json:
    quantizers = [{"backend": "xnnpack", "options": {"per_channel": True}}]
    return {"pt2e": {"quantizers": quantizers, "calibration": {"factory": f"small:{calibration}"}}}


_LENGTH = {"dim": "length", "min": 1, "max": 24}
_WORDS = {"shape": [1, 6], "dtype": "int64"}
_POSITION = {"shape": [1], "dtype": "int64"}
MODELS = {
    "counter": Small("Counter", _forward({"shape": [1, 4]})),
    "stream": Small("Stream", _forward({"shape": [1, 4, 1]})),
    "cache": Small("Cache", _forward({"shape": [1, 8]}, _POSITION)),
    "cache, portable": Small("Cache", _forward({"shape": [1, 8]}, _POSITION), partitioners=()),
    "tagger": Small(
        "Tagger", _forward(_WORDS, {**_WORDS, "fill": "ones"}, dynamic_shapes=[[None, _LENGTH], [None, _LENGTH]])
    ),
    "buckets": Small("Buckets", _forward(_WORDS, dynamic_shapes=[[None, _LENGTH]])),
    "pixels": Small(
        "Pixels",
        _forward(
            {"shape": [1, 3, 24, 24]},
            dynamic_shapes=[
                [None, None, {"dim": "height", "min": 8, "max": 40}, {"dim": "width", "min": 8, "max": 40}]
            ],
        ),
        partitioners=(),
    ),
    "grid": Small(
        "Grid",
        _forward(
            {"shape": [1, 2, 6, 6]},
            dynamic_shapes=[
                [None, None, {"dim": "height", "min": 2, "max": 16}, {"dim": "width", "min": 2, "max": 16}]
            ],
        ),
    ),
    "recurrent": Small("Recurrent", _forward({"shape": [1, 6, 6]})),
    "attention": Small(
        "Attention",
        _forward(
            {"shape": [2, 5, 16]},
            dynamic_shapes=[[{"dim": "batch", "min": 1, "max": 4}, {"dim": "length", "min": 2, "max": 24}, None]],
        ),
        partitioners=(),
    ),
    "attention, one length": Small("Attention", _forward({"shape": [1, 6, 16]})),
    "layers, int8": Small("Layers", _forward({"shape": [1, 32]}, quantize=_int8("vectors"))),
    "layers, 8da4w": Small(
        "Layers", _forward({"shape": [1, 32]}, quantize={"torchao": [{"config": "8da4w", "group_size": 32}]})
    ),
    "convolutions, int8": Small(
        "Convolutions", _forward({"shape": [1, 3, 16, 16]}, quantize=_int8("calibration")), partitioners=()
    ),
    "convolutions, int8 in XNNPACK": Small(
        "Convolutions", _forward({"shape": [1, 3, 16, 16]}, quantize=_int8("calibration"))
    ),
    "two methods": Small(
        "TwoMethods",
        {
            "write": {"entry": "write", "example_inputs": [{"shape": [1, 4]}, _POSITION]},
            "read": {"entry": "read", "example_inputs": [{"shape": [1, 4]}]},
        },
        {"share_mutable_buffers": True},
    ),
}


def create(name: str) -> nn.Module:
    """The module of a model, with random weights."""
    made: nn.Module = globals()[name]()
    return made


def write(name: str, directory: Path) -> Path:
    """Writes the manifest of a model, with its source beside it."""
    small = MODELS[name]
    directory.mkdir(exist_ok=True)
    shutil.copy(__file__, directory / "small.py")
    manifest = {
        "schema": "executorch-model/v1",
        "name": "program",
        "model": {"factory": "small:create", "kwargs": {"name": small.factory}},
        "defaults": {"partitioners": list(small.partitioners)},
        "methods": small.methods,
        **small.keys,
    }
    path = directory / "model.yaml"
    path.write_text(json.dumps(manifest, indent=2), "utf-8")
    return path
