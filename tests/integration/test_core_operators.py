"""Operators that the driver writes with core ATen operators compute what PyTorch computes."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime

from etbuild.backends.coreml.backend import CoreMl
from etbuild.lower import tanh_gelu
from tests.helpers import commands
from tests.helpers.runtime import run
from tests.integration.conftest import Build

MODEL = """
import torch

class Buckets(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ends", torch.tensor([-1.0, 0.0, 0.0, 2.0]))

    def forward(self, x):
        later = torch.bucketize(x, self.ends, right=True)
        small = torch.bucketize(x, self.ends, out_int32=True)
        return later, small, torch.nn.functional.one_hot(later, 5).sum(1)

def create():
    return Buckets()
"""


BRANCHES = """
import torch

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ends", torch.tensor([-1.0, 0.0, 2.0]))

    def forward(self, x):
        def counted(x):
            return torch.bucketize(x, self.ends)

        def other(x):
            return torch.bucketize(x, self.ends, right=True) + 7

        chosen = torch.cond(x.sum() > 0, counted, other, (x,))
        return torch.bucketize(x, self.ends), chosen

def create():
    return Branches()
"""
POOL = """
import torch

class Pools(torch.nn.Module):
    def forward(self, image):
        pools = torch.nn.functional.max_pool2d(image, 3, 1, 1), torch.nn.functional.avg_pool2d(image, 2)
        return *pools, torch.nn.functional.gelu(image * 3, approximate="tanh")

def create():
    return Pools()
"""
POOLED = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {forward: {example_inputs: [{shape: [3, 8, 8]}]}}
defaults: {partitioners: [xnnpack]}
"""


CROPS = """
import torch
from torch.nn import functional

class Crops(torch.nn.Module):
    def forward(self, x):
        columns = functional.unfold(x, 3, padding=(1, 2), stride=2)
        image = functional.fold(columns, (8, 6), 3, padding=(1, 2), stride=2)
        cropped = functional.pad(x, (-1, 2, 0, -2)), functional.pad(x, (-1, -1), value=3.0)
        return *cropped, torch.constant_pad_nd(x, (0, 0, -1, 0, 1, -1), 2), functional.pad(x, (1, 1)), image

def create():
    return Crops()
"""


def test_bucketize_counts_as_pytorch_does(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    method = {"example_inputs": [{"shape": [2, 5]}], "dynamic_shapes": [[None, {"dim": "n", "min": 2, "max": 9}]]}
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"factory": "model:create"},
        "methods": {"forward": method},
    }
    (tmp_path / "model.yaml").write_text(json.dumps(manifest))
    commands.build(tmp_path / "model.yaml", tmp_path / "out")
    values = torch.tensor([[-2.0, -1.0, -0.5, 0.0, 0.1, 2.0, 3.0], [nan, inf, -inf, 2.0, 1.0, -0.0, -1.0]])
    ends = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    [[[later, small, hot]]] = run(tmp_path / "out/net.pte", [[("forward", [values])]], tmp_path)
    expected = torch.bucketize(values, ends, right=True)
    torch.testing.assert_close(later, expected)
    torch.testing.assert_close(small, torch.bucketize(values, ends, out_int32=True))
    torch.testing.assert_close(hot, torch.nn.functional.one_hot(expected, 5).sum(1))


def test_an_operator_in_a_branch_has_a_name_of_the_branch(build: Build) -> None:
    """The operators of the method and of its branches may have one name."""
    made = build(POOLED.replace("[3, 8, 8]", "[2, 3]").replace("[xnnpack]", "[portable]"), model=BRANCHES)
    assert made.code == 0, made.err
    method = Runtime.get().load_program(made.directory / "net.pte").load_method("forward")
    ends = torch.tensor([-1.0, 0.0, 2.0])
    for x in (torch.tensor([[-1.0, 0.5, 2.0], [3.0, 0.0, 1.0]]), torch.tensor([[-1.0, -5.0, 2.0], [-3.0, 0.0, 1.0]])):
        always, chosen = method.execute([x])
        torch.testing.assert_close(always, torch.bucketize(x, ends))
        above = torch.bucketize(x, ends) if x.sum() > 0 else torch.bucketize(x, ends, right=True) + 7
        torch.testing.assert_close(chosen, above)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_gelus_tanh_form_is_written_out_for_backends_that_do_not_know_it(dtype: torch.dtype) -> None:
    gelu, x = torch.nn.GELU(approximate="tanh"), torch.linspace(-6, 6, 64, dtype=dtype)
    program = torch.export.export(gelu, (x,))
    tanh_gelu.write_out(program, CoreMl.exact_gelu_only)
    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)
    torch.testing.assert_close(program.module()(x), gelu(x))


def test_poolings_of_one_image_and_gelus_tanh_form_are_right_with_xnnpack(build: Build) -> None:
    made = build(POOLED, model=POOL)
    assert made.code == 0, made.err
    image = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = Runtime.get().load_program(made.directory / "net.pte").load_method("forward").execute([image])
    expected = (torch.nn.functional.max_pool2d(image, 3, 1, 1), torch.nn.functional.avg_pool2d(image, 2))
    for one, other in zip(found, (*expected, torch.nn.functional.gelu(image * 3, approximate="tanh")), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("partitioners", ["", "xnnpack"])
def test_paddings_with_negative_amounts_crop(partitioners: str, build: Build) -> None:
    shapes = "[[null, {dim: n, min: 2, max: 5}, null, null]]"
    method = f"{{example_inputs: [{{shape: [1, 3, 8, 6]}}], dynamic_shapes: {shapes}, partitioners: [{partitioners}]}}"
    manifest = (
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create"}}\nmethods: {{forward: {method}}}'
    )
    made = build(manifest, model=CROPS)
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(CROPS, scope)
    for channels in (3, 2, 5):
        x = torch.randn(1, channels, 8, 6, generator=torch.Generator().manual_seed(channels))
        found = Runtime.get().load_program(made.directory / "net.pte").load_method("forward").execute([x])
        for one, other in zip(found, scope["create"]()(x), strict=True):
            torch.testing.assert_close(one, other)
