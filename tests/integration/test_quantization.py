"""Quantization: its effect on weights and outputs, what methods still share, and what is refused."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torchao.quantization.pt2e import qat_utils

from tests.helpers import patterns
from tests.helpers.manifests import net
from tests.helpers.runtime import run

from .conftest import Build
from .quantized_net import MODEL, error_of, errors_of, module

STATIC = (
    '{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: {factory: "model:batches"}}}'
)
DYNAMIC = "{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true, dynamic: true}}]}}"
ASYMMETRIC = '{torchao: [{config: "model:config", kwargs: {bits: 8, mapping: ASYMMETRIC}}]}'
# By name: the quantization, the backend, the largest error against fp32, and the size of the weights relative to fp32.
SCHEMES = {
    "static": (STATIC, "xnnpack", 0.03, 1 / 4),
    "static_portable": (STATIC, "portable", 0.03, 1 / 4),
    "dynamic": (DYNAMIC, "xnnpack", 0.03, 1 / 4),
    "8da4w": ("{torchao: [{config: 8da4w}]}", "xnnpack", 0.15, 1 / 8),
    "hqq": ("{torchao: [{config: 8da4w, scales: hqq_scale_only}]}", "xnnpack", 0.15, 1 / 8),
    "8da8w": ("{torchao: [{config: 8da8w}]}", "xnnpack", 0.03, 1 / 4),
    "int8": ("{torchao: [{config: int8}]}", "xnnpack", 0.03, 1 / 4),
    "int8_portable": ("{torchao: [{config: int8}]}", "portable", 0.03, 1 / 4),
    # torchao stores each 4-bit weight in a byte. A backend without an operator for them cannot pack them.
    "int4": ("{torchao: [{config: int4}]}", "xnnpack", 0.15, 1 / 4),
    "callable": ('{torchao: [{config: "model:config", kwargs: {bits: 8}}]}', "xnnpack", 0.03, 1 / 4),
}


def manifest(quantize: str, backend: str = "xnnpack", methods: str = "features forward", more: str = "") -> str:
    entries = "".join(
        f"  {name}: {{example_inputs: [{{shape: [1, 4], dtype: int64}}]}}\n"
        if name == "text"
        else f"  {name}: {{example_inputs: [{{shape: [2, 128]}}]}}\n"
        for name in methods.split()
    )
    return (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        f"defaults: {{partitioners: [{backend}], quantize: {quantize}}}\nmethods:\n{entries}{more}"
    )


WEIGHTS = 4 * (128 * 128 + 128 * 32)  # of both linear layers, in fp32


@pytest.mark.parametrize("name", SCHEMES)
def test_scheme(name: str, build: Build, tmp_path: Path) -> None:
    quantize, backend, tolerance, part = SCHEMES[name]
    made = build(manifest(quantize, backend, more='named_data: {weights: {parameters: ["*"]}}\n'), model=MODEL)
    assert made.code == 0, made.err
    assert all(0 < error < tolerance for error in errors_of(made, tmp_path, "features", "forward"))
    # Both methods read the body's weights, which are stored once.
    assert len(made.read("net.weights.ptd")) < part * WEIGHTS * 1.35


def test_the_module_may_be_the_layer(build: Build) -> None:
    model = "import torch\n\ndef create():\n    return torch.nn.Linear(64, 32)\n"
    method = "{partitioners: [xnnpack], quantize: {torchao: [{config: 8da4w}]}, example_inputs: [{shape: [2, 64]}]}"
    text = (
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create"}}\nmethods: {{forward: {method}}}\n'
    )
    made = build(text, model=model)
    assert made.code == 0, made.err
    assert "left in floats" not in made.err
    assert "SQNR" in made.err


def test_layers_that_a_group_does_not_fit_are_left_to_the_next_entry(build: Build) -> None:
    """The rows of the head have 48 weights."""
    model = MODEL.replace("Linear(128, 128)", "Linear(128, 48)").replace("Linear(128, 32)", "Linear(48, 32)")
    entries = "{config: 8da4w, group_size: 32, fitting: true}, {config: 8da8w}"
    made = build(manifest(f"{{torchao: [{entries}]}}", methods="forward"), model=model)
    assert made.code == 0, made.err
    *_, head, body = sorted(made.json("net.report.json")["bytes"]["named_data"].values())
    assert 48 * 32 <= head < 128 * 48 / 2  # 8 bits for each weight
    assert 128 * 48 / 2 <= body < 128 * 48  # 4 bits for each weight, and scales
    refused = build(manifest("{torchao: [{config: 8da4w}]}", methods="forward"), model=model)
    assert "`head` has rows of 48 weights, which is not a multiple of 32" in refused.err


def test_weights_of_a_quantized_method_are_called_after_their_layers(build: Build) -> None:
    tags = 'named_data: {body: {parameters: ["body.*"]}, head: {parameters: ["head.*"]}}\n'
    made = build(manifest(STATIC, more=tags), model=MODEL)
    assert made.code == 0, made.err
    assert len(made.read("net.body.ptd")) > 128 * 128 > len(made.read("net.head.ptd")) > 128 * 32


def test_a_method_may_be_left_out(build: Build, tmp_path: Path) -> None:
    text = manifest(STATIC).replace("forward: {", "forward: {quantize: null, ")
    made = build(text, model=MODEL)
    assert made.code == 0, made.err
    features, forward = errors_of(made, tmp_path, "features", "forward")
    assert forward < 1e-5 < features < 0.03


def test_methods_that_are_quantized_otherwise_keep_their_own_weights(build: Build, tmp_path: Path) -> None:
    text = manifest(STATIC).replace("forward: {", "forward: {quantize: {torchao: [{config: 8da4w}]}, ")
    made = build(text, model=MODEL)
    assert made.code == 0, made.err
    features, forward = errors_of(made, tmp_path, "features", "forward")
    assert features < 0.03 < forward < 0.15


@pytest.mark.parametrize(("config", "part", "tolerance"), [("int8", 1 / 4, 0.03), ("8da4w", 1 / 8, 0.15)])
def test_both_ways_in_one_method(config: str, part: float, tolerance: float, build: Build, tmp_path: Path) -> None:
    static = STATIC.replace("per_channel: true", "per_channel: true, leave_out: [body]")
    quantize = static.replace("{pt2e", f"{{torchao: [{{config: {config}, modules: [body.*]}}], pt2e", 1)
    tags = 'named_data: {body: {parameters: ["body.*"]}, head: {parameters: ["head.*"]}}\n'
    made = build(manifest(quantize, methods="forward", more=tags), model=MODEL)
    assert made.code == 0, made.err
    assert 1e-3 < error_of(made, tmp_path) < tolerance
    assert len(made.read("net.body.ptd")) < part * 4 * 128**2 * 1.35
    assert len(made.read("net.head.ptd")) < 128 * 32 * 1.35


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_named_data_of_methods_that_are_quantized_otherwise(backend: str, build: Build, tmp_path: Path) -> None:
    text = manifest("{torchao: [{config: int8}]}", backend, "features forward third").replace(
        "third: {", "third: {entry: forward, "
    )
    for method in ("forward", "third"):
        text = text.replace(f"{method}: {{", f"{method}: {{quantize: {{torchao: [{{config: int8, group_size: 32}}]}}, ")
    made = build(text + "named_data: {body: {parameters: [body.0.weight, body.0.bias]}}\n", model=MODEL)
    assert made.code == 0, made.err
    assert all(0 < error < 0.03 for error in errors_of(made, tmp_path, "features", "forward"))
    # The body's weights for both group sizes. Those with groups of 32 are stored once for both methods.
    assert 2 < len(made.read("net.body.ptd")) / 128**2 < 2.6


def test_a_pattern_that_was_traced_before_is_a_copy_of_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of this file rely on `traced_once`, which must not mix up patterns with the same code."""
    traces = []
    trace = patterns._trace

    def remember(*arguments: Any) -> Any:
        traces.append(trace(*arguments))
        return traces[-1]

    monkeypatch.setattr(patterns, "_trace", remember)
    inputs = (torch.ones(1, 1, 3), torch.ones(1, 1, 1), *[torch.ones(1)] * 5)
    convolutions = (torch.nn.functional.conv1d, torch.nn.functional.conv_transpose1d)

    def traced() -> list[torch.fx.GraphModule]:
        made = [qat_utils._get_conv_bn_pattern(convolution) for convolution in convolutions]
        return [qat_utils._get_aten_graph_module_for_pattern(pattern, inputs) for pattern in made]

    with patterns.traced_once():
        first, again = traced(), traced()
    assert len(traces) == len(convolutions)
    assert [module.code for module in first] == [module.code for module in again] == [made.code for made in traces]
    assert first[0].code != first[1].code
    assert len({id(module) for module in (*first, *again, *traces)}) == 6


OWN = net(
    "self.linear = torch.nn.Linear(128, 128)",
    "self.gain = torch.nn.Parameter(torch.ones(128))",
    "self.gain_scale = torch.nn.Parameter(torch.full((128,), 2.0))",
    forward="return self.linear(x) * self.gain * self.gain_scale",
)


def test_a_parameter_of_the_module_was_made_of_no_other(build: Build) -> None:
    tags = "named_data: {gain: {parameters: [gain]}, scale: {parameters: [gain_scale]}}\n"
    made = build(manifest("{torchao: [{config: int8}]}", "portable", "forward", tags), model=OWN)
    assert made.code == 0, made.err
    external = made.json("net.report.json")["bytes"]["external"]
    assert external == {"gain": {"gain": 512}, "scale": {"gain_scale": 512}}


def test_layers_by_pattern_and_kind(build: Build, tmp_path: Path) -> None:
    quantize = "{torchao: [{config: 8da8w, modules: [head]}, {config: int4, layers: [embedding]}]}"
    made = build(manifest(quantize, methods="text features"), model=MODEL)
    assert made.code == 0, made.err
    tokens = torch.tensor([[1, 5, 63, 0]])
    (((actual,),),) = run(made.directory / "net.pte", [[("text", [tokens])]], tmp_path)
    with torch.no_grad():
        expected = module().text(tokens)
    assert 1e-3 < float((actual - expected).norm() / expected.norm()) < 0.2
    assert error_of(made, tmp_path, "features") < 1e-5  # `body` is not among the modules
    operators = made.json("net.report.json")["methods"]["text"]["operators"]["fallback"]
    assert any("embedding_4bit" in name or "dequantize_affine" in name for name in operators)
    # The embedding in 4 bits, the head in 8, the body in fp32, and a few kB more.
    assert len(made.read("net.pte")) < 64 * 128 * 0.7 + 128 * 32 * 1.2 + 4 * 128 * 128 + 12_000


@pytest.mark.parametrize("bits", ["int4", "int8"])
def test_a_linear_layer_beside_an_embedding_stays_small(bits: str, build: Build, tmp_path: Path) -> None:
    quantize = f"{{torchao: [{{config: int8}}, {{config: {bits}, layers: [embedding]}}]}}"
    made = build(manifest(quantize, methods="text"), model=MODEL)
    assert made.code == 0, made.err
    tokens = torch.tensor([[1, 5, 63, 0]])
    (((actual,),),) = run(made.directory / "net.pte", [[("text", [tokens])]], tmp_path)
    with torch.no_grad():
        expected = module().text(tokens)
    assert 1e-3 < float((actual - expected).norm() / expected.norm()) < 0.2
    assert len(made.read("net.pte")) < 64 * 128 + 128 * 32 + 8_000  # the linear layer in fp32 would have 16 kB


def test_training(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = build(manifest('{pt2e: {quantizers: [xnnpack], qat: "model:train"}}', methods="forward"), model=MODEL)
    assert made.code == 0, made.err
    assert (tmp_path / "trained").exists()
    assert 0 < error_of(made, tmp_path) < 0.1


def test_training_changes_no_other_method(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = manifest('{pt2e: {quantizers: [xnnpack], qat: "model:train"}}').replace(
        "forward: {", "forward: {quantize: null, "
    )
    trained = MODEL.replace("lr=0.001", "lr=1.0")  # `features` is exported, and trained, before `forward`
    made = build(text, model=trained)
    assert made.code == 0, made.err
    assert error_of(made, tmp_path, "forward") < 1e-5


STATEFUL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("sum", torch.zeros(2, 8))

    def forward(self, x):
        self.sum.add_(x)
        return self.linear(self.sum)

def create():
    return Net()

def batches():
    return [torch.linspace(4.9, 5.0, 16).view(2, 8) for _ in range(3)]
"""


def test_calibration_leaves_the_buffers_as_they_were(build: Build, tmp_path: Path) -> None:
    made = build(manifest(STATIC, methods="forward").replace("[2, 128]", "[2, 8]"), model=STATEFUL)
    assert made.code == 0, made.err
    (((actual,),),) = run(made.directory / "net.pte", [[("forward", [torch.zeros(2, 8)])]], tmp_path)
    scope: dict[str, Any] = {}
    exec(STATEFUL, scope)
    bias = scope["create"]().linear.bias
    torch.testing.assert_close(actual, bias.expand(2, 8), rtol=0, atol=0.1)


CONVOLUTIONS = net(
    "torch.manual_seed(0)",
    "self.first = torch.nn.Sequential(torch.nn.Conv2d(16, 64, 3), torch.nn.ReLU())",
    "self.second = torch.nn.Conv2d(64, 64, 3)",
    forward="return self.second(self.first(x))",
)


# The first convolution has 9216 weights, the second 36864: one byte each if quantized, else four.
@pytest.mark.parametrize(
    ("modules", "size"), [("first", 9216 + 4 * 36864), ("first.0", 9216 + 4 * 36864), ("second", 4 * 9216 + 36864)]
)
def test_convolutions_by_name(modules: str, size: int, build: Build) -> None:
    options = f"options: {{modules: [{modules}]}}"
    quantize = f"{{pt2e: {{quantizers: [{{backend: xnnpack, {options}}}], calibration: example_inputs}}}}"
    text = manifest(quantize, methods="forward").replace("[2, 128]", "[1, 16, 8, 8]")
    made = build(text, model=CONVOLUTIONS)
    assert made.code == 0, made.err
    assert size < len(made.read("net.pte")) < size + 12_000


NORMED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.BatchNorm1d(8)
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("sum", torch.zeros(2, 8))

    def forward(self, x):
        self.sum.add_(x)
        return self.linear(self.norm(x)) + self.sum * 1.0

def create():
    return Net()

def train(prepared):
    for _ in range(99):
        prepared(10 + torch.randn(2, 8))
"""


def test_training_leaves_the_buffers_that_the_method_writes_to(build: Build, tmp_path: Path) -> None:
    quantize = '{pt2e: {quantizers: [xnnpack], qat: "model:train"}}'
    made = build(manifest(quantize, methods="forward").replace("[2, 128]", "[2, 8]"), model=NORMED)
    assert made.code == 0, made.err
    inputs = torch.full((2, 8), 10.0)
    (((actual,),),) = run(made.directory / "net.pte", [[("forward", [inputs])]], tmp_path)
    scope: dict[str, Any] = {}
    exec(NORMED, scope)
    bias = scope["create"]().linear.bias
    # Training learned that the mean of the inputs is about 10. It left `sum` unchanged, which could be in the hundreds.
    torch.testing.assert_close(actual, bias + inputs, rtol=0, atol=2)


def test_patterns_match_the_names_that_weights_had(build: Build) -> None:
    names = "[body.0.weight, body.0.bias, head.weight, head.bias]"
    for quantize in (STATIC, "{torchao: [{config: 8da8w}]}"):
        made = build(manifest(quantize, more=f"named_data: {{all: {{parameters: {names}}}}}\n"), model=MODEL)
        assert made.code == 0, made.err
        assert WEIGHTS / 4 < len(made.read("net.all.ptd")) < WEIGHTS / 4 * 1.35


def test_a_layer_of_two_names_is_quantized_once(build: Build, tmp_path: Path) -> None:
    model = MODEL.replace("        self.head =", "        self.first = self.body[0]\n        self.head =")
    made = build(manifest("{torchao: [{config: 8da8w, modules: [first]}]}", methods="features"), model=model)
    assert made.code == 0, made.err
    assert 1e-5 < error_of(made, tmp_path, "features") < 0.03


def test_passes_run_where_the_manifest_says(build: Build, tmp_path: Path) -> None:
    passes = 'passes: {pre_prepare: ["model:add_a_relu"]}'
    made = build(manifest(STATIC.replace("pt2e: {", f"pt2e: {{{passes}, "), methods="forward"), model=MODEL)
    assert made.code == 0, made.err
    inputs = torch.randn(2, 128)
    (((actual,),),) = run(made.directory / "net.pte", [[("forward", [inputs])]], tmp_path)
    assert actual.min() == 0


def test_calibration_from_a_file(build: Build, tmp_path: Path) -> None:
    batches = torch.randn(3, 2, 128, generator=torch.Generator().manual_seed(1))
    text = manifest(STATIC.replace('{factory: "model:batches"}', "{file: batches.safetensors}"))
    made = build(text, model=MODEL, files={"batches.safetensors": save({"x": batches})})
    assert made.code == 0, made.err
    other = build(text, model=MODEL, files={"batches.safetensors": save({"x": batches * 2})})
    assert error_of(made, tmp_path) < 0.03
    assert other.json("net.index.json")["key"] != made.json("net.index.json")["key"]
    assert other.read("net.pte") != made.read("net.pte")


def test_batches_may_have_other_sizes_of_dynamic_dimensions(build: Build, tmp_path: Path) -> None:
    dims = "forward: {dynamic_shapes: [[{dim: batch, min: 1, max: 8}, null]], "
    text = manifest(batches("torch.randn(7, 128)"), methods="forward").replace("forward: {", dims)
    made = build(text, model=MODEL)
    assert made.code == 0, made.err
    assert error_of(made, tmp_path) < 0.1
    made = build(text.replace("(7, 128)", "(9, 128)"), model=MODEL)
    assert "batch 0, input [0] is float32 [9, 128], but the method takes float32 [2, 128]" in made.err


def test_a_dimension_has_one_size_in_a_batch(build: Build) -> None:
    model = MODEL.replace(
        "def text(", "def pair(self, x, y):\n        return self.head(x) + self.head(y)\n\n    def text("
    )
    dims = "[{dim: batch, min: 1, max: 8}, null]"
    inputs = f"example_inputs: [{{shape: [2, 128]}}, {{shape: [2, 128]}}], dynamic_shapes: [{dims}, {dims}]"
    text = manifest(batches("[torch.randn(3, 128), torch.randn(3, 128)]"), methods="").rstrip()
    text = f"{text}\n  pair: {{{inputs}}}\n"
    assert build(text, model=model).code == 0
    made = build(text.replace("(3, 128), ", "(1, 128), "), model=model)
    assert made.code == 2
    assert "pt2e.calibration: batch 0, input [1] has 3 for `batch`, but another input has 1" in made.err


def test_random_batches_of_a_method_depend_on_no_other(build: Build, tmp_path: Path) -> None:
    text = manifest(batches("torch.randn(2, 128)"))
    without_features = text.replace("  features: {example_inputs: [{shape: [2, 128]}]}\n", "")
    both, one = build(text, model=MODEL), build(without_features, model=MODEL)
    assert error_of(both, tmp_path) == error_of(one, tmp_path)


def test_weights_from_a_file_are_quantized(build: Build, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in module().state_dict().items()}
    text = manifest(STATIC).replace('create"}', 'create", weights: net.safetensors}')
    made = build(text, model=MODEL.replace("manual_seed(0)", "manual_seed(5)"), files={"net.safetensors": save(state)})
    assert made.code == 0, made.err
    assert error_of(made, tmp_path) < 0.03


def exported(entry: str, **shapes: object) -> bytes:
    class Entry(torch.nn.Module):
        def __init__(self, net: torch.nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(self.net, entry)(x)

    written = io.BytesIO()
    torch.export.save(torch.export.export(Entry(module()), (torch.zeros(2, 128),), **shapes), written)
    return written.getvalue()


def test_an_exported_program_is_a_method(build: Build, tmp_path: Path) -> None:
    dims = {"dynamic_shapes": ({0: torch.export.Dim("batch", min=2, max=8)},)}
    files = {"forward.pt2": exported("forward", **dims), "features.pt2": exported("features")}
    text = (
        "schema: executorch-model/v1\nname: net\ndefaults: {partitioners: [xnnpack]}\n"
        "methods: {forward: {program: forward.pt2}, features: {program: features.pt2}}\n"
    )
    made = build(text, files=files)
    assert made.code == 0, made.err
    assert max(errors_of(made, tmp_path, "features", "forward")) < 1e-5
    assert len(made.read("net.pte")) < WEIGHTS * 1.2  # the body is stored once
    single = build(text.replace(", features: {program: features.pt2}", ""), files=files)
    inputs = torch.randn(8, 128)
    (((actual,),),) = run(single.directory / "net.pte", [[("forward", [inputs])]], tmp_path)
    torch.testing.assert_close(actual, module()(inputs), rtol=1e-4, atol=1e-4)


def batches(batch: str) -> str:
    """Calibration on one batch."""
    return STATIC.replace('"model:batches"', f'"model:one_batch", kwargs: {{batch: "{batch}"}}')


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        ("{torchao: [{config: 8da4w, modules: [hed]}]}", "no linear layer matches hed"),
        (
            "{torchao: [{config: 8da4w, group_size: 48}]}",
            "`body.0` has rows of 128 weights, which is not a multiple of 48",
        ),
        ('{torchao: [{config: "model:batches"}]}', "returned list, not a configuration of torchao"),
        (
            '{pt2e: {quantizers: [{backend: custom, options: {factory: "model:create"}}], qat: "model:train"}}',
            "not a Q",
        ),
        (
            STATIC.replace("pt2e: {", 'pt2e: {passes: {post_convert: ["model:no_graph"]}, '),
            "returned int, not a torch.fx",
        ),
        (ASYMMETRIC, "zero points of the quantized weight `body.0"),
        (STATIC.replace("model:batches", "model:create"), "`model:create` failed"),
        (
            STATIC.replace("{pt2e", "{torchao: [{config: int8, modules: [head]}, {config: int8}], pt2e"),
            "pt2e.quantizers: `body.0` is quantized twice",
        ),
        (
            STATIC.replace("per_channel: true", "modules: [hed]"),
            "pt2e.quantizers[0].options.modules[0]: the model has no submodule `hed`",
        ),
        (STATIC.replace("per_channel: true", "leave_out: [hed]"), "did you mean `head`?"),
        (STATIC.replace('{factory: "model:batches"}', "{file: b.safetensors, keys: [y]}"), "has no tensor `y`"),
        (STATIC.replace('{factory: "model:batches"}', "{file: b.safetensors, keys: [x, x]}"), "2 keys for 1 input"),
        (
            STATIC.replace('{factory: "model:batches"}', "{file: b.safetensors}"),
            "pt2e.calibration: batch 0, input [0] is float32 [5], but the method takes float32 [2, 128]",
        ),
        (
            batches("torch.zeros(2, 128)"),
            "pt2e.calibration: `model:one_batch` has nothing but 0 in each input, so its ranges fit no other",
        ),
        (batches("torch.zeros(7, 128)"), "batch 0, input [0] is float32 [7, 128], but"),
        (batches("torch.zeros(2, 128).double()"), "batch 0, input [0] is float64 [2, 128], but"),
        (batches("([torch.zeros(2, 128)],)"), "batch 0 is ([float32 [2, 128]],), but the method takes (float32 [2"),
        (batches("(torch.zeros(2, 128), 3)"), "batch 0 is (float32 [2, 128], 3), but the method takes (float32 [2"),
    ],
)
def test_refused(quantize: str, message: str, build: Build) -> None:
    made = build(manifest(quantize), model=MODEL, files={"b.safetensors": save({"x": torch.zeros(3, 5)})})
    assert made.code in (1, 2)
    assert message in made.err
    assert "Traceback" not in made.err
    assert made.files == []


def test_a_file_that_is_not_an_exported_program(build: Build) -> None:
    text = "schema: executorch-model/v1\nname: net\nmethods: {forward: {program: forward.pt2}}\n"
    state = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, state)
    for content in (b"no zip", state.getvalue()):
        made = build(text, files={"forward.pt2": content})
        assert made.code == 2
        message = "model.yaml:3:30: methods.forward.program: `forward.pt2` is not a file of torch.export.save"
        assert message in made.err
    archive = io.BytesIO()
    zipfile.ZipFile(archive, "w").close()
    made = build(text, files={"forward.pt2": archive.getvalue()})
    assert made.code == 2
    assert "methods.forward.program: cannot read `forward.pt2`" in made.err


@pytest.mark.parametrize("strict", ["false", "true"])
def test_layers_are_quantized_whoever_calls_them(strict: str, build: Build, tmp_path: Path) -> None:
    layers = """\
def create():
    net = Net()
    body, original = net.body, net.forward
    net.run = lambda x: body(x)
    net.features = lambda x: net.run(x)
    net.forward = lambda x: original(x) * 1
    net.lock = threading.Lock()  # no module with one can be copied
    return net
"""
    model = "import threading\n" + MODEL.replace("def create():\n    return Net()\n", layers)
    text = manifest("{torchao: [{config: 8da8w}]}", methods="features forward plain").replace(
        "plain: {", "plain: {entry: forward, quantize: null, "
    )
    made = build(f"{text}".replace("{partitioners", f"{{strict: {strict}, partitioners"), model=model)
    assert made.code == 0, made.err
    features, forward = errors_of(made, tmp_path, "features", "forward")
    assert 1e-4 < features < 0.03
    assert 1e-4 < forward < 0.03
    inputs = torch.randn(2, 128)
    (((plain,),),) = run(made.directory / "net.pte", [[("plain", [inputs])]], tmp_path)
    torch.testing.assert_close(plain, module()(inputs), rtol=1e-4, atol=1e-4)
    assert WEIGHTS * 5 / 4 < len(made.read("net.pte")) < WEIGHTS * 5 / 4 * 1.2


def test_a_layer_of_a_class_of_its_own_is_quantized(build: Build, tmp_path: Path) -> None:
    model = MODEL.replace("self.head = torch.nn.Linear", "self.head = Head")
    model += "class Head(torch.nn.Linear):\n    pass\n"
    made = build(manifest("{torchao: [{config: 8da8w, modules: [head]}]}", methods="forward"), model=model)
    assert made.code == 0, made.err
    assert 1e-4 < error_of(made, tmp_path) < 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "weight = net.body[0].weight\n    net.features = lambda x: torch.nn.functional.linear(x, weight)",
            "methods.features.quantize.torchao: `body.0.weight` is quantized, but the method reads the tensor from",
        ),
        (
            "last = net.body[0].weight[64:]\n    net.features = lambda x: x @ last.T",
            "methods.features.quantize.torchao: `body.0.weight` is quantized, but the method reads the tensor from",
        ),
        ("torch.nn.utils.weight_norm(net.head)", "torchao[0]: `head` computes its weight"),
        ("torch.nn.utils.parametrizations.weight_norm(net.head)", "torchao[0]: `head` computes its weight"),
    ],
)
def test_weights_that_cannot_be_quantized(change: str, message: str, build: Build) -> None:
    """Without the error, they would silently be lowered in fp32."""
    model = MODEL.replace("    return Net()\n", f"    net = Net()\n    {change}\n    return net\n")
    made = build(manifest("{torchao: [{config: 8da4w}]}"), model=model)
    assert made.code in (1, 2)
    assert message in made.err
    assert "Traceback" not in made.err


BEFORE = """
import torch

class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, 2, 1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.second = torch.nn.Conv2d(8, 16, 3, 2, 1)
        self.third, self.fourth = torch.nn.Conv2d(3, 3, 3, 1, 1), torch.nn.Conv2d(3, 3, 1)
        self.rows = torch.nn.Linear(8, 8)
        self.offset = torch.nn.Parameter(torch.randn(1, 3, 8, 8))

    def forward(self, x):
        return self.second(torch.nn.functional.silu(self.norm(self.first(x))))

    def joined(self, x):
        x = torch.cat([x, x, x[:, :2]], 1)
        return self.second(torch.nn.functional.silu(x)) + x.mean()

    def again(self, x):
        y = self.third(x).relu()
        return self.third(y) + x

    def branches(self, x):
        return self.third(x) + self.fourth(x)

    def by_rows(self, x):
        y = self.third(x).relu()
        return self.rows(y) * self.fourth(y)

    def copied(self, x):
        y = x.relu()
        return self.third(y) + y.to(memory_format=torch.channels_last) * 2

    def averages(self, x):
        return self.third(x).mean((2, 3)) + (x + self.offset).mean((2, 3))

def create():
    return Before()
"""


def test_operators_before_a_convolution_with_dynamic_quantization(build: Build, tmp_path: Path) -> None:
    """ExecuTorch's own program computes other numbers for `forward` and `branches`, cannot run `joined` and `averages`,
    and cannot be lowered for `by_rows`."""
    names = ("forward", "joined", "again", "branches", "by_rows", "copied", "averages")
    methods = ", ".join(f"{name}: {{example_inputs: [{{shape: [1, 3, 8, 8]}}]}}" for name in names)
    made = build(
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create", seed: 1}}\n'
        f"defaults: {{partitioners: [xnnpack], quantize: {DYNAMIC}}}\nmethods: {{{methods}}}\n",
        model=BEFORE,
    )
    assert made.code == 0, made.err
    x, scope = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)), dict[str, Any]()
    exec(BEFORE, scope)
    torch.manual_seed(1)
    model = scope["create"]()
    for name in names:
        [[[found]]] = run(made.directory / "net.pte", [[(name, [x])]], tmp_path)
        torch.testing.assert_close(found, getattr(model, name)(x), rtol=0, atol=0.03)


SHARED = """
import torch

class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.conv, self.short = torch.nn.Linear(8, 8), torch.nn.Conv2d(8, 8, 1), torch.nn.Conv1d(8, 8, 1)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(2))
        self.norms[1].running_var.fill_(9.0)
        self.even = torch.nn.Conv2d(8, 8, 2, padding="same")
        self.kernel = torch.nn.Parameter(torch.randn(8, 8, 2) * 0.3)

    def linears(self, x):
        return self.linear(self.linear(x).relu()) * self.linear.bias

    def convs(self, x):
        return self.conv(self.conv(x.view(1, 8, 2, 1)).relu()) + self.conv.bias.view(8, 1, 1)

    def computed(self, x):
        kernel = self.conv.weight * x.mean()
        return torch.nn.functional.conv2d(x.view(1, 8, 2, 1), kernel)

    def mish(self, x):
        return torch.nn.functional.mish(self.conv(x.view(1, 8, 1, 2)))

    def borders(self, x):
        found = self.linear(x)
        return found, found[..., None] * 2, found.t() * 2, found.exp()

    def padded(self, x):
        return self.even(x.view(1, 8, 1, 2).repeat(1, 1, 2, 2)).relu()

    def sequence(self, x):
        return self.short(self.short(x.view(1, 8, 2)).relu())

    def there_and_back(self, x):
        return torch.nn.functional.conv_transpose1d(torch.conv1d(x.view(1, 8, 2), self.kernel), self.kernel)

    def chances(self, x):
        y = self.conv(x.view(1, 8, 2, 1))
        return torch.softmax(y, 2) + y, y

    def heads(self, x):
        return [norm(self.conv(x.view(1, 8, 2, 1))) for norm in self.norms]

def create():
    return Shared()

def batches():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(2, 8, generator=generator),) for _ in range(3)]
"""


def shared(*methods: str) -> str:
    each = ", ".join(f"{name}: {{example_inputs: [{{shape: [2, 8], fill: 1}}]}}" for name in methods)
    return (
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create", seed: 1}}\n'
        f"defaults: {{partitioners: [xnnpack], quantize: {STATIC}}}\nmethods: {{{each}}}\n"
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_values_with_several_readers(build: Build, tmp_path: Path) -> None:
    """ExecuTorch's own program computes other numbers for `linears`, `mish`, `borders` and `chances`, cannot be loaded
    for `convs` and `there_and_back`, and cannot be lowered for `sequence`. The bias of each call of a layer has a scale
    of its own, each reader of an image the layout that it needs, and what reads float32 gets float32."""
    one, several = ("linears", "convs", "mish", "padded", "sequence", "there_and_back"), ("borders", "chances", "heads")
    made = build(shared(*one, *several), model=SHARED)
    assert made.code == 0, made.err
    scope = dict[str, Any]()
    exec(SHARED, scope)
    torch.manual_seed(1)
    model, [(x,), *_] = scope["create"]().eval(), scope["batches"]()
    for name in one:
        [[[found]]] = run(made.directory / "net.pte", [[(name, [x])]], tmp_path)
        torch.testing.assert_close(found, getattr(model, name)(x), rtol=0, atol=0.03)
    for name in several:
        [[found]] = run(made.directory / "net.pte", [[(name, [x])]], tmp_path)
        torch.testing.assert_close(found, [*getattr(model, name)(x)], rtol=0, atol=0.1)


def test_a_method_that_ends_the_process_of_the_runtime_fails_the_build(build: Build) -> None:
    """The kernel of `quantize_per_channel` takes only scales of float64."""
    made = build(shared("computed"), model=SHARED)
    assert made.code == 1
    assert "methods.computed: comparing computed" in made.err
    assert "SIGABRT" in made.err


def test_a_linear_layer_whose_weight_is_computed_is_explained(build: Build) -> None:
    model = net(
        "self.linear = torch.nn.Linear(4, 16)",
        forward="return torch.nn.functional.linear(x, self.linear(x.mean(0, keepdim=True)).view(4, 4))",
    )
    quantizer = "{backend: xnnpack, options: {per_channel: true}}"
    made = build(
        f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create"}}
methods: {{forward: {{example_inputs: [{{shape: [2, 4]}}]}}}}
defaults:
  partitioners: [xnnpack]
  quantize: {{pt2e: {{quantizers: [{quantizer}], calibration: example_inputs}}}}
""",
        model=model,
    )
    assert made.code == 1
    assert "a quantized layer has a weight that the method computes: exclude the layer with `leave_out`" in made.err


MIXED = """
import torch

def create():
    return torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3), torch.nn.Conv1d(8, 8, 3))

def batches():
    return [(torch.ones(1, 8, 16),), (-torch.ones(1, 8, 16),)]
"""


@pytest.mark.parametrize("quantized", ["0", "1"])
def test_one_of_two_one_dimensional_convolutions(build: Build, tmp_path: Path, quantized: str) -> None:
    """ExecuTorch can lower neither."""
    quantizer = f"{{backend: xnnpack, options: {{modules: ['{quantized}']}}}}"
    quantize = f'{{pt2e: {{quantizers: [{quantizer}], calibration: {{factory: "model:batches"}}}}}}'
    made = build(
        f'schema: executorch-model/v1\nname: net\nmodel: {{factory: "model:create", seed: 1}}\n'
        f"defaults: {{partitioners: [xnnpack], quantize: {quantize}}}\n"
        "methods: {forward: {example_inputs: [{shape: [1, 8, 16]}]}}\n",
        model=MIXED,
    )
    assert made.code == 0, made.err
    scope = dict[str, Any]()
    exec(MIXED, scope)
    torch.manual_seed(1)
    model, x = scope["create"](), torch.linspace(-1, 1, 128).view(1, 8, 16)
    [[[found]]] = run(made.directory / "net.pte", [[("forward", [x])]], tmp_path)
    torch.testing.assert_close(found, model(x), rtol=0, atol=0.02)


@pytest.mark.parametrize(("value", "quantize"), [("nan", STATIC), ("inf", STATIC), ("inf", DYNAMIC)])
def test_a_weight_without_a_scale_is_named(value: str, quantize: str, build: Build) -> None:
    change = f"net.body[0].weight.data[1, 1] = float('{value}')"
    model = MODEL.replace("    return Net()\n", f"    net = Net()\n    {change}\n    return net\n")
    made = build(manifest(quantize), model=model)
    assert made.code == 1
    assert "`body.0.weight` cannot be quantized: 1 of 16,384 elements are NaN or infinite" in made.err


BFLOAT16 = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", dtype: bfloat16}
defaults: {partitioners: [%s]%s}
methods: {forward: {example_inputs: [{shape: [1, 4], dtype: int64}]}}
"""
EMBEDDED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 32, padding_idx=3)
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, tokens):
        return self.linear(self.embedding(tokens))

def create():
    return Net()
"""
ENABLED = "{backend: xnnpack, options: {enable_bf16: true}}"


def test_bfloat16_outside_of_a_backend_is_noted_with_the_option_for_it(build: Build) -> None:
    left_out = build(BFLOAT16 % ("xnnpack", ""), model=EMBEDDED)
    assert left_out.code == 0
    note = f"`forward` computes in bfloat16 outside of its backends (1 aten::addmm); `{ENABLED}` may change that"
    assert f"note: {note}" in left_out.err
    taken = build(BFLOAT16 % (ENABLED, ""), model=EMBEDDED)
    assert "bfloat16" not in taken.err
    assert taken.json("net.report.json")["methods"]["forward"]["operators"]["delegated"]


def test_quantized_layers_in_bfloat16_need_the_option_for_it(build: Build, tmp_path: Path) -> None:
    quantize = ", quantize: {torchao: [{config: 8da4w}, {config: int8, layers: [embedding]}]}"
    refused = build(BFLOAT16 % ("xnnpack", quantize), model=EMBEDDED)
    assert refused.code == 1
    assert "`xnnpack` does not take the quantized layers, which compute in bfloat16" in refused.err
    assert f"write `{ENABLED}`, or `dtype: float32` below `model`" in refused.err
    tokens = [torch.tensor([[3, 0, 7, 15]])]
    outputs = []
    for text in (BFLOAT16 % (ENABLED, quantize), BFLOAT16.replace("bfloat16", "float32") % ("xnnpack", quantize)):
        made = build(text, model=EMBEDDED)
        assert made.code == 0, made.err
        outputs += run(made.directory / "net.pte", [[("forward", tokens)]], tmp_path)[0][0]
    assert outputs[0].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[0].float(), outputs[1], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("config", ["int8", "int4"])
def test_an_embedding_with_a_padding_index_is_packed(build: Build, tmp_path: Path, config: str) -> None:
    text = BFLOAT16.replace(", dtype: bfloat16", "")
    quantize = f", quantize: {{torchao: [{{config: {config}, layers: [embedding]}}]}}"
    tokens = [torch.tensor([[3, 0, 7, 15]])]
    outputs = []
    for model in (EMBEDDED, EMBEDDED.replace(", padding_idx=3", ")\n        self.embedding.weight.data[3].fill_(0")):
        made = build(text % ("xnnpack", quantize), model=model)
        assert made.code == 0, made.err
        outputs += run(made.directory / "net.pte", [[("forward", tokens)]], tmp_path)[0][0]
    assert torch.equal(outputs[0], outputs[1])


def test_a_layer_that_the_named_backend_leaves_out_is_named(build: Build) -> None:
    only_float = "{backend: xnnpack, options: {config_precisions: [fp32]}}"
    made = build(manifest("{torchao: [{config: 8da4w}]}").replace("xnnpack", only_float), model=MODEL)
    assert made.code == 1
    assert "`xnnpack` did not take the quantized layer `" in made.err
    assert "such as `xnnpack`" not in made.err


def test_layers_that_no_backend_takes(build: Build) -> None:
    text = manifest("{torchao: [{config: int8}]}", "portable")
    made = build(text.replace("forward: {", "forward: {quantize: {torchao: [{config: 8da4w}]}, "), model=MODEL)
    assert made.code == 1
    assert re.search(r"methods\.(features|forward)\.quantize: emitting \1 failed", made.err), made.err
    assert "these quantized layers need a backend that takes them, such as `xnnpack`" in made.err
    assert "custom_ops" not in made.err
