"""Values that 8 bits do not hold, layers with several readers, and states stay right in methods that PT2E quantizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.helpers.runtime import run

from .conftest import Build

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
METHODS = (*MASKED, "stated", "norm_beside", "two_norms", "one_norm_twice", "norm_of_groups", "standardized", "twice")
QUANTIZE = (
    '{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: {factory: "model:batches"}}}'
)


def test_they_stay_right(build: Build, tmp_path: Path) -> None:
    methods = "".join(f"  {name}: {{example_inputs: [{{shape: [8, 16]}}]}}\n" for name in METHODS)
    made = build(
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        f"defaults: {{partitioners: [xnnpack], quantize: {QUANTIZE}}}\nmethods:\n{methods}",
        model=MODEL,
    )
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    model, [(x,), *_] = scope["create"](), scope["batches"]()
    for name in METHODS:
        outputs = run(made.directory / "net.pte", [[(name, [x])] * 3], tmp_path)[0]
        for (found,) in outputs:
            with torch.no_grad():
                expected = getattr(model, name)(x)
            assert float((found - expected).norm() / expected.norm()) < 0.05, name
    found = made.json("net.report.json")["quantization"]
    assert all("conv.weight" not in row["weights"] for row in found["in_floats"]), "both calls are quantized"
