"""Operators that the driver writes with core ATen operators compute what PyTorch computes."""

from __future__ import annotations

import json
import math
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime

from etplugins.coreml.backend import CoreMl
from etplugins.upstream import constant_results, core_operators, missing_operators, tanh_gelu
from etplugins.upstream.graph_changes import write
from tests.conformance.test_upstream_limits import Net
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


MISSING = """
import torch
from torch import nn
from torch.nn import functional

class Missing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bilinear = nn.Bilinear(5, 4, 6)
        self.words = nn.Parameter(torch.randn(7, 3))
        self.of_volumes = nn.ModuleList([
            nn.Conv3d(2, 3, (1, 2, 5), stride=(1, 2, 5)),
            nn.Conv3d(2, 4, 3, (2, 1, 3), 1, (1, 2, 1), groups=2, bias=False),
            nn.Conv3d(2, 3, (2, 3, 2), padding="same"),
            nn.ConvTranspose3d(2, 4, 2, (3, 2, 1), (0, 1, 0), (1, 0, 0), groups=2, dilation=(2, 1, 1)),
            nn.MaxPool3d((2, 3, 2), padding=(1, 1, 0), ceil_mode=True),
            nn.AvgPool3d(2, (1, 2, 2), padding=1, count_include_pad=False),
        ])
        self.register_buffer("ends", torch.tensor([-1.0, 0.0, 0.5]))

    def forward(self, x, tokens):
        bags = [functional.embedding_bag(tokens, self.words, mode=mode) for mode in ("mean", "max")]
        weights = x.flatten(1)[:, :4]
        bags.append(functional.embedding_bag(tokens, self.words, per_sample_weights=weights, mode="sum"))
        one = functional.adaptive_max_pool2d(x, 1), functional.adaptive_max_pool1d(x[:, 0], 3)
        several = functional.adaptive_max_pool2d(x, (2, 5)), functional.adaptive_max_pool2d(x, (3, 2))
        volumes = functional.adaptive_max_pool3d(x, (2, 1, 2))
        sorted_rows = self.ends.expand(x.shape[0], 2, 4, 3).contiguous()
        found = torch.searchsorted(self.ends, x), torch.searchsorted(sorted_rows, x, side="right", out_int32=True)
        spread = *torch.var_mean(x, (1, 2), keepdim=True), *torch.var_mean(x), torch.var_mean(x, -1, correction=0)[0]
        rounded = x.round(decimals=1), (100 * x).round(decimals=-1), x.exp2(), torch.special.exp2(tokens)
        torch._check_tensor_all(tokens >= 0)
        rounded += torch.ops.aten._is_all_true(x > 1), torch.ops.aten._is_any_true(x > 1)
        products = x.cumprod(-1), x.cumprod(1), tokens.cumprod(1), x.cumprod(2, dtype=torch.float64)
        film = torch.stack([x, 2 * x, -x], 2)
        volumes = volumes, *(layer(film) for layer in self.of_volumes), *(layer(film[0]) for layer in self.of_volumes)
        return *bags, *one, *several, *volumes, *found, *spread, *rounded, *products, self.bilinear(x, x[..., :4])

def create():
    return Missing()
"""


ROUNDED = """
import math
import torch

class Rounded(torch.nn.Module):
    def forward(self, x):
        count = x.shape[0]
        return x * math.ceil(1.25 * count), x + math.ceil(1.0 * count), x - math.floor(count * 0.5)

def create():
    return Rounded()
"""


def test_a_size_times_a_float_is_rounded_as_by_python(tmp_path: Path) -> None:
    rows = "{example_inputs: [{shape: [7, 2]}], dynamic_shapes: [[{dim: rows, min: 2, max: 21}, null]]}"
    (tmp_path / "model.py").write_text(ROUNDED)
    manifest = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
    (tmp_path / "model.yaml").write_text(f"{manifest}methods: {{forward: {rows}}}\ndefaults: {{partitioners: []}}\n")
    commands.build(tmp_path / "model.yaml", tmp_path / "out")
    names: dict[str, Any] = {}
    exec(ROUNDED, names)
    inputs = [torch.rand(count, 2) for count in (2, 7, 10, 20, 21)]
    found = run(tmp_path / "out/net.pte", [[("forward", [each])] for each in inputs], tmp_path)
    for given, [results] in zip(inputs, found, strict=True):
        torch.testing.assert_close(results, list(names["create"]()(given)))


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


@pytest.mark.parametrize("partitioners", ["", "xnnpack"])
def test_operators_without_a_decomposition_are_written_with_others(partitioners: str, build: Build) -> None:
    sizes = "[[{dim: n, min: 2, max: 4}, null, null, null], [{dim: n}, null]]"
    inputs = "[{shape: [3, 2, 4, 5]}, {shape: [3, 4], dtype: int64}]"
    method = f"{{example_inputs: {inputs}, dynamic_shapes: {sizes}, partitioners: [{partitioners}]}}"
    made = build(
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create"}}\nmethods: {{forward: {method}}}',
        model=MISSING,
    )
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(MISSING, scope)
    method = Runtime.get().load_program(made.directory / "net.pte").load_method("forward")
    for rows in (2, 4):
        generator = torch.Generator().manual_seed(rows)
        x, tokens = torch.randn(rows, 2, 4, 5, generator=generator), torch.randint(7, (rows, 4), generator=generator)
        for one, other in zip(method.execute([x, tokens]), scope["create"]()(x, tokens), strict=True):
            torch.testing.assert_close(one, other)


def test_a_convolution_that_covers_its_volume_is_a_linear_layer() -> None:
    """The portable kernel of convolutions is much slower, for example for the patches of a video."""
    patch, x = torch.nn.Conv3d(2, 3, (2, 4, 4), stride=(2, 4, 4)), torch.randn(5, 2, 2, 4, 4)
    program = torch.export.export(patch, (x,))
    write(program, missing_operators.writer)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "aten.linear.default" in called
    assert not [name for name in called if "conv" in name]
    torch.testing.assert_close(program.module()(x), patch(x))


KERNELS = """
import torch

class Kernels(torch.nn.Module):
    def forward(self, x, counts):
        repeated = x.repeat_interleave(counts, 0)
        torch._check(repeated.shape[0] <= 12)
        halved = counts.clone()
        halved >>= 1
        shifted = (counts >> 1) & 3, counts << counts, 1 << counts, 64 >> counts, halved
        return *shifted, repeated * 2, x.repeat_interleave(counts - counts + 2, 0, output_size=6), x[x > 0]

def create():
    return Kernels()
"""


def test_operators_outside_core_aten_are_taken_if_the_runtime_has_a_kernel(build: Build) -> None:
    inputs = "[{shape: [3, 2]}, {shape: [3], dtype: int64, fill: arange}]"
    checks = "checks: {compare: {methods: {forward: {ranges: [null, [0, 4]]}}}}\n"
    made = build(POOLED.replace("[{shape: [3, 8, 8]}]", inputs) + checks, model=KERNELS)
    assert made.code == 0, made.err
    assert "note" not in made.err
    without_limit = KERNELS.replace("torch._check(", "print(")
    refused = build(POOLED.replace("[{shape: [3, 8, 8]}]", inputs), model=without_limit)
    assert refused.code == 1
    assert "a size of what `aten::repeat_interleave.Tensor` returns depends on values" in refused.err
    assert "write `torch._check(x.shape[0] <= LIMIT)` in the model" in refused.err


ROWS = """
import torch

class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(4, 3))
        self.register_buffer("calls", torch.zeros(2, 3))

    def rows(self, x):
        best = x.argmax()
        return self.table[best], self.table[best - 4].relu(), self.table.T[:, best], x.cumsum(0)[best] * 2

    def written(self, x):
        self.calls.add_(1)
        best, row = self.table[x.argmax()], self.calls[(x[0] > 0).long()] * 2
        self.calls.add_(1)
        return best, row

    def assigned(self, x):
        row = (x[0] > 0).long()
        self.calls[row] = 2.0
        return self.calls + 1

    def cut(self, x):
        count = (x > 0).sum().item()
        return x[:count] * 2

def create():
    return Rows()
"""


@pytest.mark.parametrize(
    ("method", "old", "new", "hint"),
    [
        ("rows", "", "", ""),
        (
            "written",
            "(x[0] > 0).long()] *",
            "(x[0] > 0).long().reshape(1)][0] *",
            "the index is a number that a tensor holds: index with the tensor, `x[i.reshape(1)][0]` in place of `x[i]`",
        ),
        (
            "assigned",
            "calls[row] =",
            "calls[row.reshape(1)] =",
            "an assignment takes no index that is a number which a tensor holds: write `x[i.reshape(1)] = y`",
        ),
        (
            "cut",
            ".item()",
            ".item(); torch._check(count >= 0); torch._check(count <= 4)",
            "write its limits in the model, for example `n = t.item(); torch._check(n >= 0); torch._check(n <= LIMIT)`",
        ),
    ],
)
def test_a_row_may_be_chosen_by_a_tensor_or_the_way_to_write_it_is_said(
    method: str, old: str, new: str, hint: str, build: Build
) -> None:
    manifest = POOLED.replace("[3, 8, 8]", "[4]").replace("forward", method)
    if hint:
        refused = build(manifest, model=ROWS)
        assert refused.code == 1
        assert hint in refused.err
        assert "huggingface" not in refused.err
    made = build(manifest, model=ROWS.replace(old, new))
    assert made.code == 0, made.err


def test_xnnpack_leaves_changes_of_shapes_with_several_dynamic_sizes_to_other_kernels(build: Build) -> None:
    model = """
import torch

class Sounds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv1d(3, 4, 3, padding=1)
        self.back = torch.nn.ConvTranspose1d(4, 2, 3, stride=2)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return (self.back(self.norm(self.conv(x)).relu()) + 1)[..., None].relu()

def create():
    return Sounds().eval()
"""
    sizes = "[[{dim: n, min: 2, max: 4}, null, {dim: m, min: 2, max: 8}]]"
    method = f"{{example_inputs: [{{shape: [3, 3, 7]}}], dynamic_shapes: {sizes}, partitioners: [xnnpack]}}"
    made = build(
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create"}}\nmethods: {{forward: {method}}}',
        model=model,
    )
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(model, scope)
    loaded = Runtime.get().load_program(made.directory / "net.pte").load_method("forward")
    for shape in ((2, 3, 8), (4, 3, 2)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(loaded.execute([x])[0], scope["create"]()(x))


DECIDED = """
import torch

class Tail(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(8.0).view(1, 8))

    def forward(self, x):
        rows = x.shape[0]
        return x + self.table[max(0, 1 - rows) :, min(0, rows - 1) :]

def create():
    return Tail()
"""


def test_the_larger_of_two_sizes_is_a_number_if_their_limits_say_so(build: Build) -> None:
    text = (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\nmethods:\n  forward:\n'
        "    example_inputs: [{shape: [4, 8]}]\n    dynamic_shapes: [[{dim: rows, min: 1, max: 9}, null]]\n"
    )
    made = build(text, model=DECIDED)
    assert made.code == 0, made.err
    loaded = Runtime.get().load_program(made.directory / "net.pte").load_method("forward")
    scope: dict[str, Any] = {}
    exec(DECIDED, scope)
    for rows in (1, 4, 9):
        x = torch.arange(rows * 8.0).reshape(rows, 8)
        torch.testing.assert_close(loaded.execute([x])[0], scope["create"]()(x))


NORMS = """
import torch
from torch import nn

class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        norms = [nn.LayerNorm(6), nn.LayerNorm((4, 5, 6)), nn.LayerNorm(6, eps=1e-12, elementwise_affine=False)]
        norms += [nn.GroupNorm(groups, 4) for groups in (1, 2, 4)]
        norms += [nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4, track_running_stats=False)]
        self.norms = nn.ModuleList(norms).to(torch.DTYPE)
        for parameter in self.norms.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        columns = x.to(memory_format=torch.channels_last)
        results = *(norm(x) for norm in self.norms), self.norms[3](columns).contiguous()
        return *results, torch.native_layer_norm(x, (6,), None, None, 1e-5)[1]

def create():
    return Norms()
"""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norms_are_right_for_any_mean_and_for_flat_inputs(dtype: torch.dtype, build: Build) -> None:
    model, name = NORMS.replace("torch.DTYPE", str(dtype)), str(dtype).removeprefix("torch.")
    sizes = "[[{dim: n, min: 1, max: 3}, null, null, null]]"
    method = f"{{example_inputs: [{{shape: [2, 4, 5, 6], dtype: {name}}}], dynamic_shapes: {sizes}}}"
    text = f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create"}}\nmethods: {{forward: {method}}}'
    made = build(f"{text}\ndefaults: {{partitioners: [xnnpack]}}\n", model=model)
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(model, scope)
    net = scope["create"]().double()
    loaded = Runtime.get().load_program(made.directory / "net.pte").load_method("forward")
    # A mean of 20,000 has three digits after the point in float32.
    precise = 2e-3 if dtype in (torch.float32, torch.float64) else 0.05
    for rows, mean in ((1, 0), (3, 100), (2, 3000), (3, -20000)):
        x = torch.randn(rows, 4, 5, 6, generator=torch.Generator().manual_seed(0)).to(dtype) + mean
        for given in (x, torch.full_like(x, mean + 0.3)):
            for found, expected in zip(loaded.execute([given]), net(given.double()), strict=True):
                torch.testing.assert_close(found, expected.to(dtype), atol=precise, rtol=precise)


DIVISIONS = """
import torch

class Divisions(torch.nn.Module):
    def forward(self, x, y):
        tensors = torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")
        return *tensors, torch.fmod(x, 7), torch.fmod(x, -7), torch.div(x, -7, rounding_mode="trunc")

def create():
    return Divisions()
"""


def test_divisions_of_int64_have_all_digits(build: Build) -> None:
    inputs = "[{shape: [6], dtype: int64, fill: arange}, {shape: [6], dtype: int64, fill: ones}]"
    text = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\nmethods:\n'
    made = build(f"{text}  forward: {{example_inputs: {inputs}, partitioners: []}}\n", model=DIVISIONS)
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(DIVISIONS, scope)
    given = torch.tensor([2**53 + 1, -(2**53) - 1, 2**60 + 3, -1, 7, -14]), torch.tensor([-3, 7, 2, 5, -7, 7])
    found = Runtime.get().load_program(made.directory / "net.pte").load_method("forward").execute(list(given))
    for one, other in zip(found, scope["create"]()(*given), strict=True):
        assert one.tolist() == other.tolist()


ROOTS = """
import torch

class Roots(torch.nn.Module):
    def forward(self, x):
        clamped = (x * 2).clamp(min=1e-12).rsqrt()
        return (x * 2).rsqrt(), x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt(), clamped

def create():
    return Roots()
"""


def test_xnnpack_leaves_rsqrt_to_other_kernels_unless_its_input_is_above_zero(build: Build) -> None:
    made = build(POOLED.replace("[3, 8, 8]", "[2, 3]"), model=ROOTS)
    assert made.code == 0, made.err
    x = torch.tensor([[0.0, 1.0, 4.0], [0.0, 0.0, 0.0]])
    scope: dict[str, Any] = {}
    exec(ROOTS, scope)
    found = Runtime.get().load_program(made.directory / "net.pte").load_method("forward").execute([x])
    for one, other in zip(found, scope["create"]()(x), strict=True):
        torch.testing.assert_close(one, other)
    operators = json.loads((made.directory / "net.report.json").read_text())["methods"]["forward"]["operators"]
    assert operators["delegated"]["XnnpackBackend"]["aten::rsqrt"] == 2
    assert operators["fallback"]["aten::rsqrt"] == 1


MASKED = """
import torch

class Masked(torch.nn.Module):
    def forward(self, x, mask):
        return (x - 1e30 * mask).sigmoid(), torch.nn.functional.silu(x.masked_fill(mask > 0, -1e30)), x.sigmoid()

def create():
    return Masked()
"""


def test_xnnpack_leaves_sigmoid_of_large_masks_to_other_kernels(build: Build) -> None:
    inputs = "[{shape: [2, 3]}, {shape: [2, 3], fill: ones}]"
    made = build(POOLED.replace("[{shape: [3, 8, 8]}]", inputs), model=MASKED)
    assert made.code == 0, made.err
    operators = json.loads((made.directory / "net.report.json").read_text())["methods"]["forward"]["operators"]
    assert operators["delegated"]["XnnpackBackend"]["aten::sigmoid"] == 1
    assert operators["fallback"]["aten::sigmoid"] == 2


CONSTANTS = """
import torch

class Quantile(torch.nn.Module):
    def forward(self, x):
        share = torch.tensor(0.95, dtype=torch.float32)
        return x - torch.distributions.normal.Normal(0, 1).icdf(share) * x.std()

class Inverse(torch.nn.Module):
    def forward(self, x):
        return torch.erfinv(x)
"""


def test_an_operator_of_constants_only_becomes_a_number(build: Build) -> None:
    text = (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:Quantile"}\n'
        "methods: {forward: {example_inputs: [{shape: [2, 8]}]}}\n"
    )
    made = build(text, model=CONSTANTS)
    assert made.code == 0, made.err
    scope: dict[str, Any] = {}
    exec(CONSTANTS, scope)
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    found = Runtime.get().load_program(made.directory / "net.pte").load_method("forward").execute([x])
    torch.testing.assert_close(found[0], scope["Quantile"]()(x))
    refused = build(text.replace("Quantile", "Inverse"), model=CONSTANTS)
    assert refused.code == 1
    assert "aten.erfinv.default is not in Core ATen opset" in refused.err


class _OfRandom(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(torch.tensor([0.5])).erfinv()


class _OfWritten(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.tensor([0.5, 0.5]).clone()
        held[0:1].add_(x[0] - 2)
        return x + held.erfinv()


@pytest.mark.parametrize("module", [_OfRandom(), _OfWritten()], ids=["random", "written"])
def test_what_the_inputs_or_chance_decide_is_no_constant(module: torch.nn.Module) -> None:
    program = torch.export.export(module, (torch.full((2,), 2.0),))
    constant_results.compute(program)
    assert any(node.target == torch.ops.aten.erfinv.default for node in program.graph.nodes)


def test_a_size_of_one_counts_where_the_method_allows_it() -> None:
    """PyTorch itself takes each dynamic size for 2 or more."""
    net = Net(lambda self, x: torch.ones(torch.sym_max(2, x.shape[0])))
    sizes = {"inputs": ({0: torch.export.Dim("n", max=9)},)}
    program = torch.export.export(net, (torch.ones(4),), dynamic_shapes=sizes)
    core_operators.make_lowerable(program, ())
    maxima = program.graph.find_nodes(op="call_function", target=torch.sym_max)
    assert len(maxima) == any(limits.lower < 2 for limits in program.range_constraints.values())


def test_what_computes_a_size_may_be_long() -> None:
    """Only products of the size are looked at, and not what its number comes from."""

    def deep(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = x + x.relu()
        return torch.ones(math.ceil(x.sum().item()))

    program = torch.export.export(Net(deep), (torch.ones(2),), strict=False)
    core_operators.make_lowerable(program, ())
    assert program.graph.find_nodes(op="call_function", target=math.ceil)
