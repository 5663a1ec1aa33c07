"""Values that 8 bits do not hold, layers with several readers, states, loops, branches and writes to parts of values
stay right in methods that PT2E quantizes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.runtime import run

from .conftest import Build, Outcome

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.conv, self.deconv = nn.Conv2d(4, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, 2, groups=4)
        self.first, self.second, self.third = (nn.BatchNorm2d(4) for _ in range(3))
        for norm in (self.first, self.second, self.third):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 4)
        self.register_buffer("infinite", torch.full((8, 8), -torch.inf).triu(1))
        self.register_buffer("state", torch.full((8, 16), 2.0))

    def attend(self, x, mask):
        return torch.softmax(self.q(x) @ self.k(x).T * 0.5 + mask, -1) @ self.v(x)

    def infinite_mask(self, x):
        return self.attend(x, self.infinite)

    def smallest_mask(self, x):
        return self.attend(x, (x[:, 0] < -0.5) * torch.finfo(x.dtype).min)

    def large_mask(self, x):
        return self.attend(x, (1.0 - (x[:, 0] > -0.5).float()) * -10000.0)

    def stated(self, x):
        found = self.q(self.state + x)
        self.state.mul_(0.5)
        return found

    def in_float64(self, x):
        angles = torch.arange(8, dtype=torch.float64)[:, None] * torch.arange(16) / 10 + 1
        return self.k(self.q(x) + (angles.sin() + angles.cos()).float()) * (x.double() + angles).float()

    def image(self, x):
        return x.view(2, 4, 4, 4)

    def norm_beside(self, x):
        found = self.conv(self.image(x))
        return self.first(found).relu() + found

    def two_norms(self, x):
        return self.first(self.conv(self.image(x))) * self.second(self.conv(self.image(x).flip(-1)))

    def one_norm_twice(self, x):
        return self.third(self.conv(self.third(self.conv(self.image(x))).relu()))

    def norm_of_groups(self, x):
        return self.second(self.deconv(self.image(x))).relu()

    def standardized(self, x):
        weight = self.conv.weight - self.conv.weight.mean((1, 2, 3), keepdim=True)
        return self.first(torch.conv2d(self.image(x), weight, padding=1)).relu()

    def twice(self, x):
        return self.conv(self.conv(self.image(x)).sigmoid())


def create():
    torch.manual_seed(0)
    return Net().eval()


def batches():
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 16, generator=numbers),) for _ in range(4)]
"""
MASKED = ("infinite_mask", "smallest_mask", "large_mask")
METHODS = (
    *MASKED,
    "stated",
    "in_float64",
    "norm_beside",
    "two_norms",
    "one_norm_twice",
    "norm_of_groups",
    "standardized",
    "twice",
)
QUANTIZE = (
    '{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: {factory: "model:batches"}}}'
)


LOOPS = """\
import torch
from torch import nn
from torch._higher_order_ops.map import map
from torch._higher_order_ops.scan import scan


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.decay = nn.Parameter(torch.rand(16))

    def scanned(self, x):
        def step(state, row):
            state = torch.tanh(state * self.decay + row)
            return state, state + 1

        last, rows = scan(step, torch.zeros(16), self.q(x))
        return self.k(rows) + last

    def mapped(self, x):
        return self.k(map(lambda row: torch.tanh(row * self.decay) + self.decay, self.q(x)))

    def branched(self, x):
        y = self.q(x)
        return self.k(torch.cond(y[0, 0] > 0, lambda v: v * self.decay + 3, lambda v: v + 1, (y,)))


def create():
    torch.manual_seed(0)
    return Net().eval()


def batches():
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 16, generator=numbers),) for _ in range(4)]
"""
WRITES = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.norm.running_var.uniform_(0.5, 4)
        self.register_buffer("rows", torch.zeros(8, 16))
        self.register_buffer("state", torch.zeros(8, 16))

    def added(self, x):
        y = self.q(x)
        y[:, 0] += 1
        return self.k(y)

    def divided(self, x):
        y = self.q(x) + 0.5
        y[..., 0] /= 4
        y[..., 1] /= 2
        return self.k(torch.cat([y, y], 0))

    def clamped(self, x):
        y = self.q(x)
        y[2:5, :8].clamp_(0, 0.25)
        return self.k(y) + y

    def masked(self, x):
        y = self.q(x)
        y[:, 8:].masked_fill_(x[:, :8] > 0, 0.5)
        return self.k(y)

    def copied(self, x):
        y = self.q(x)
        y[:, 4:8].copy_(x[:, :4])
        return self.k(y)

    def whole(self, x):
        y = self.q(x)
        y.add_(x)
        z = self.k(y)
        y.mul_(0.5).relu_()
        return z + y

    def viewed(self, x):
        y = self.q(x)
        rows, (left, right) = y.view(16, 8), y.split(8, 1)
        left.sigmoid_()
        y.clamp_(-0.5, 0.5)
        return self.k(y) + rows.view(8, 16), right + 1

    def limited(self, x):
        self.state.add_(self.q(x)).clamp_(-0.25, 0.25)
        return self.k(self.state)

    def kept(self, x):
        self.rows[1:4] = self.q(x)[:3]
        return self.k(self.rows + x)

    def image(self, x):
        y = self.norm(self.conv(x.view(2, 4, 4, 4)))
        y[:, 0].zero_()
        return self.conv(y.relu())


def create():
    torch.manual_seed(0)
    return Net().eval()


def batches():
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 16, generator=numbers),) for _ in range(4)]
"""


def built(build: Build, source: str, names: Iterable[str], scratch: Path, quantize: str = QUANTIZE) -> Outcome:
    """A program of methods, each of which computes what its model computes, but for the 8 bits."""
    methods = "".join(f"  {name}: {{example_inputs: [{{shape: [8, 16]}}]}}\n" for name in names)
    made = build(
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        f"defaults: {{partitioners: [xnnpack], quantize: {quantize}}}\nmethods:\n{methods}",
        model=source,
    )
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(source, scope)
    model, [(x,), *_] = scope["create"](), scope["batches"]()
    for name in names:
        outputs = run(made.directory / "net.pte", [[(name, [x])] * 3], scratch)[0]
        for found in outputs:
            with torch.no_grad():
                expected = getattr(model, name)(x)
            for one, other in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
                assert one.dtype == other.dtype, name
                assert float((one - other).float().norm() / other.float().norm()) < 0.05, name
    return made


def test_they_stay_right(build: Build, tmp_path: Path) -> None:
    found = built(build, MODEL, METHODS, tmp_path).json("net.report.json")["quantization"]
    assert all("conv.weight" not in row["weights"] for row in found["in_floats"]), "both calls are quantized"


def test_bodies_of_loops_and_branches_stay_in_floats(build: Build, tmp_path: Path) -> None:
    """torchao would quantize the weights of a loop in each round."""
    made = built(build, LOOPS, ("scanned", "mapped", "branched"), tmp_path)
    assert made.json("net.report.json")["quantization"]["quantized"] == 2


WRITING = ("added", "divided", "clamped", "masked", "copied", "whole", "viewed", "limited", "kept", "image")


def test_writes_to_values_are_kept(build: Build, tmp_path: Path) -> None:
    built(build, WRITES, WRITING, tmp_path)


def test_a_training_keeps_writes_or_refuses_them(build: Build, tmp_path: Path) -> None:
    """`qat` trains what the model says: a graph without writes would be one for inference."""
    source = WRITES + "\n\ndef train(prepared):\n    for _ in range(8):\n        prepared(*batches()[0])\n"
    quantize = '{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true}}], qat: "model:train"}}'
    built(build, source, ("whole",), tmp_path, quantize)
    for name, write in (("viewed", "sigmoid_"), ("limited", "clamp_")):
        with pytest.raises(AssertionError, match=f"`aten.{write}.default` writes to a value that is read later"):
            built(build, source, (name,), tmp_path, quantize)


INTEGERS = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(16, 16)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def chosen(self, x):
        y = self.q(x)
        return y, y.argmax(-1), (x > 0).long().sum(-1)

    def counted(self, x):
        self.count.add_(1)
        return self.q(x) * self.count, self.count + 0

    def hashed(self, x):
        return self.q(x), ((x > 0).long() * 3000000007 + 5) % 97


def create():
    torch.manual_seed(0)
    return Net().eval()


def batches():
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 16, generator=numbers),) for _ in range(4)]
"""
OF_ARM = '{pt2e: {quantizers: [tosa], calibration: {factory: "model:batches"}}}'


def test_a_quantizer_keeps_the_dtypes_of_outputs(build: Build, tmp_path: Path) -> None:
    """Arm's quantizers compute integers of 64 bits in 32 bits."""
    built(build, INTEGERS, ("chosen",), tmp_path, OF_ARM)


@pytest.mark.parametrize("name", ["counted", "hashed"])
def test_integers_that_a_quantizer_changes_are_an_error(build: Build, tmp_path: Path, name: str) -> None:
    built(build, INTEGERS, (name,), tmp_path)
    with pytest.raises(AssertionError, match="in 32 bits"):
        built(build, INTEGERS, (name,), tmp_path, OF_ARM)
