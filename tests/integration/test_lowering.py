"""All methods reach a backend together, in one `preprocess_multimethod` call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import runtime
from tests.helpers.manifests import net

from .conftest import Build, Outcome

MODEL = net(
    "self.linear = torch.nn.Linear(8, 8)",
    prefill="return self.linear(x).sin().cos()",
    decode="return self.linear(x).cos()",
    plain="return self.linear(x).sin()",
)

# Two backends that record their calls; each takes one operator.
RECORDER = """\
import json, os
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

def record(backend, methods):
    with open(os.environ["RECORD"], "a") as file:
        file.write(json.dumps([backend, {name: len(programs) for name, programs in methods.items()}]) + "\\n")

class SinBackend(BackendDetails):
    @classmethod
    def preprocess(cls, program, specs):
        return PreprocessResult(b"sin")

    @classmethod
    def preprocess_multimethod(cls, programs, specs):
        record("sin", programs)
        return super().preprocess_multimethod(programs, specs)

class CosBackend(BackendDetails):
    @classmethod
    def preprocess(cls, program, specs):
        return PreprocessResult(b"cos")

    @classmethod
    def preprocess_multimethod(cls, programs, specs):
        record("cos", programs)
        return super().preprocess_multimethod(programs, specs)

class Taker(Partitioner):
    def __init__(self, word, backend):
        super().__init__()
        self.word, self.backend = word, backend

    def partition(self, program):
        tags = {}
        for node in program.graph.nodes:
            if node.op == "call_function" and self.word in str(node.target):
                node.meta["delegation_tag"] = f"{self.word}{len(tags)}"
                tags[node.meta["delegation_tag"]] = DelegationSpec(self.backend, [])
        return PartitionResult(program, tags)

def sin():
    return Taker("aten.sin", "SinBackend")

def cos():
    return Taker("aten.cos", "CosBackend")
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  prefill:
    example_inputs: [{shape: [2, 8]}]
    partitioners:
      - {backend: custom, options: {factory: "recorder:sin"}}
      - {backend: custom, options: {factory: "recorder:cos"}}
  decode:
    example_inputs: [{shape: [1, 8]}]
    partitioners:
      - {backend: custom, options: {factory: "recorder:cos"}}
  plain:
    example_inputs: [{shape: [1, 8]}]
"""


def test_each_backend_is_called_once_with_all_its_methods(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORD", str(tmp_path / "calls"))
    outcome = build(MANIFEST, model=MODEL, recorder=RECORDER)
    assert outcome.code == 0, outcome.err
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert calls == [["sin", {"prefill": 1}], ["cos", {"decode": 1, "prefill": 1}]]
    methods = outcome.json("net.report.json")["methods"]
    assert methods["prefill"]["delegates"] == {"CosBackend": 1, "SinBackend": 1}
    assert methods["decode"]["operators"]["delegated"] == {"CosBackend": {"aten::cos": 1}}
    assert methods["plain"]["delegates"] == {}
    assert methods["plain"]["operators"]["fallback"]["aten::sin"] == 1


def test_the_order_of_methods_in_the_manifest_does_not_reach_the_bytes(build: Build) -> None:
    one = "  a: {entry: prefill, example_inputs: [{shape: [2, 8]}]}\n"
    two = "  b: {entry: decode, example_inputs: [{shape: [2, 8]}]}\n"
    head, tail = MANIFEST[: MANIFEST.index("  prefill")], "defaults: {partitioners: [xnnpack]}\n"
    first, second = build(head + one + two + tail, model=MODEL), build(head + two + one + tail, model=MODEL)
    assert first.code == 0, first.err
    assert first.files == second.files
    assert [first.read(name) for name in first.files] == [second.read(name) for name in second.files]


def test_a_placeholder_partitioner_does_not_reach_the_bytes(build: Build) -> None:
    """A method that skips a call for the other method's backend is lowered as if it were the only method."""
    cos = '[{backend: custom, options: {factory: "recorder:cos"}}, xnnpack]'
    head = MANIFEST[: MANIFEST.index("  prefill")]
    decode = "  decode: {example_inputs: [{shape: [1, 8]}], partitioners: [xnnpack]}\n"
    single = build(head + decode, model=MODEL, recorder=RECORDER)
    waiting = build(
        head + decode + f"  other: {{entry: plain, example_inputs: [{{shape: [1, 8]}}], partitioners: {cos}}}\n",
        model=MODEL,
        recorder=RECORDER,
    )
    assert waiting.code == 0, waiting.err
    of = [outcome.json("net.report.json")["methods"]["decode"] for outcome in (single, waiting)]
    assert of[0] == of[1]


def test_submodules_and_methods_keep_the_names_of_their_weights(build: Build) -> None:
    model = MODEL.replace("return Net()", "return torch.nn.ModuleDict({'left': Net(), 'right': Net()})")
    manifest = MANIFEST[: MANIFEST.index("  prefill")] + (
        "  left: {entry: left.plain, example_inputs: [{shape: [1, 8]}]}\n"
        "  right: {entry: right.linear, example_inputs: [{shape: [1, 8]}]}\n"
        "named_data: {all: {parameters: ['*']}}\n"
    )
    outcome = build(manifest, model=model)
    assert outcome.code == 0, outcome.err
    keys = outcome.json("net.report.json")["bytes"]["external"]["all"]
    assert set(keys) == {"left.linear.weight", "left.linear.bias", "right.linear.weight", "right.linear.bias"}


def test_constants_of_every_kind_come_back(build: Build) -> None:
    manifest = MANIFEST[: MANIFEST.index("  prefill")] + (
        "  plain: {example_inputs: [{shape: [1, 8]}]}\n"
        "constant_methods: {get_n: 3, get_scale: 0.5, is_causal: true, get_name: net, get_ids: [1, 2]}\n"
    )
    outcome = build(manifest, model=MODEL)
    assert outcome.code == 0, outcome.err
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(outcome.directory / "net.pte")
    values = {name: program.load_method(name).execute([]) for name in ("get_n", "get_scale", "is_causal", "get_name")}
    assert values == {"get_n": [3], "get_scale": [0.5], "is_causal": [True], "get_name": ["net"]}
    assert list(program.load_method("get_ids").execute([])) == [1, 2]


COUNTER = """\
import torch

class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.full((2,), 5.0))
        self.register_buffer("zero", torch.zeros(2))

    def forward(self, x):
        self.count += x
        self.zero += x
        return self.count * 1 + self.zero

def create():
    return Counter()
"""


def test_a_written_buffer_starts_with_what_the_module_has_in_it(build: Build) -> None:
    import torch

    manifest = MANIFEST[: MANIFEST.index("  prefill")] + "  forward: {example_inputs: [{shape: [2], fill: 3}]}\n"
    outcome = build(manifest, model=COUNTER)
    assert outcome.code == 0, outcome.err
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(outcome.directory / "net.pte").load_method("forward")
    assert [method.execute([torch.ones(2)])[0].tolist() for _ in range(2)] == [[7.0, 7.0], [9.0, 9.0]]
    assert outcome.json("net.report.json")["bytes"]["mutable"] == [8]


def run(outcome: Outcome, method: str, *inputs: object) -> list[float]:
    import torch
    from executorch.runtime import Runtime

    assert outcome.code == 0, outcome.err
    loaded = Runtime.get().load_program(outcome.directory / "net.pte").load_method(method)
    output: list[float] = loaded.execute([torch.tensor([1.0]), *inputs])[0].tolist()
    return output


ONE = "{example_inputs: [{shape: [1], fill: 1}]}"
SIMPLE = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.Parameter(torch.full((1,), 7.0))
        self.calls = 0

    def forward(self, x):
        return x + 1

    def fast(self, x):
        return x + 100

    def other(self, x):
        return x * self.p

    def write(self, x):
        self.p.add_(x)
        return self.p * 2

    def count(self, x):
        self.calls += 1
        return x * self.calls
"""


def simple(methods: str, create: str) -> tuple[str, str]:
    head = MANIFEST[: MANIFEST.index("methods")]
    return head + f"methods: {methods}\n", SIMPLE + f"\ndef create():\n    net = Net()\n    {create}\n    return net\n"


def test_a_forward_that_the_factory_set_is_kept(build: Build) -> None:
    manifest, model = simple(f"{{a: {ONE[:-1]}, entry: other}}, forward: {ONE}}}", "net.forward = net.fast")
    assert run(build(manifest, model=model), "forward") == [101.0]


def test_hooks_of_forward_do_not_run_for_another_entry(build: Build) -> None:
    hook = "net.register_forward_hook(lambda module, inputs, output: output * 1000)"
    manifest, model = simple(f"{{other: {ONE}, forward: {ONE}}}", hook)
    outcome = build(manifest, model=model)
    assert run(outcome, "other") == [7.0]
    assert run(outcome, "forward") == [2000.0]


def test_a_method_that_counts_its_calls_is_refused(build: Build) -> None:
    manifest, model = simple(f"{{count: {ONE}}}", "pass")
    outcome = build(manifest, model=model)
    assert outcome.code == 1
    assert "torch.export loses what the first assigns to `calls`" in outcome.err


def test_a_method_that_writes_to_a_parameter_is_refused(build: Build) -> None:
    manifest, model = simple(f"{{write: {ONE}}}", "pass")
    outcome = build(manifest, model=model)
    assert outcome.code == 1
    assert "methods.write" in outcome.err
    assert "writes to the parameter `p`" in outcome.err


def test_the_order_of_kwargs_reaches_neither_key_nor_bytes(build: Build) -> None:
    model = (
        "import torch\n\nclass Net(torch.nn.Module):\n    def __init__(self, ops):\n        super().__init__()\n"
        "        self.ops = ops\n\n    def forward(self, x):\n        for name, value in self.ops.items():\n"
        "            x = x * value if name == 'mul' else x + value\n        return x\n\n"
        "def create(ops):\n    return Net(ops)\n"
    )
    head = MANIFEST[: MANIFEST.index("methods")]
    made = [
        build(
            head.replace('"model:create"', f'"model:create", kwargs: {{ops: {ops}}}')
            + f"methods: {{forward: {ONE}}}\n",
            model=model,
        )
        for ops in ("{mul: 2, add: 3}", "{add: 3, mul: 2}")
    ]
    assert made[0].read("net.pte") == made[1].read("net.pte")
    assert made[0].read("net.index.json") == made[1].read("net.index.json")
    assert run(made[0], "forward") == [8.0]


def test_an_option_that_the_runtime_cannot_load_with_convolutions(build: Build) -> None:
    model = "import torch\n\ndef create():\n    return torch.nn.Conv2d(1, 2, 3)\n"
    options = "{backend: xnnpack, options: {force_non_static_weights_for_f32_linear: true}}"
    head = MANIFEST[: MANIFEST.index("methods")]
    entry = f"{{example_inputs: [{{shape: [1, 1, 8, 8]}}], partitioners: [{options}]}}"
    outcome = build(head + f"methods: {{forward: {entry}}}\n", model=model)
    assert outcome.code == 1
    assert "and a convolution" in outcome.err


WINDOWS = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)
        torch.nn.init.eye_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        windows = x.reshape(1, 2, 2, 2, 2, 2, 2, 32).permute(0, 1, 3, 5, 2, 4, 6, 7)
        return (self.linear(windows).softmax(-1) + windows).reshape(8, 8, 32)

def create():
    return Net()
"""
EIGHT_BITS = "{pt2e: {quantizers: [xnnpack], calibration: example_inputs}}"


@pytest.mark.parametrize("quantize", ["null", EIGHT_BITS], ids=["none", "pt2e"])
def test_tensors_of_more_dimensions_than_xnnpack_knows_are_left_to_portable_operators(
    build: Build, tmp_path: Path, quantize: str
) -> None:
    """Windows of videos have eight dimensions."""
    forward = f"{{example_inputs: [{{shape: [4, 4, 4, 32], fill: 1}}], quantize: {quantize}}}"
    built = build(DYNAMIC[: DYNAMIC.index("methods")] + f"methods: {{forward: {forward}}}\n", model=WINDOWS)
    assert built.code == 0, built.err
    assert built.json("net.report.json")["methods"]["forward"]["delegates"]["XnnpackBackend"] >= 1
    x = torch.rand((4, 4, 4, 32), generator=torch.Generator().manual_seed(0))
    [[[found]]] = runtime.run(built.directory / "net.pte", [[("forward", [x])]], tmp_path)
    windows = x.reshape(1, 2, 2, 2, 2, 2, 2, 32).permute(0, 1, 3, 5, 2, 4, 6, 7)
    torch.testing.assert_close(found, (windows.softmax(-1) + windows).reshape(8, 8, 32), rtol=0.0, atol=0.05)


PACKED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.conv, self.short = torch.nn.Linear(4, 4), torch.nn.Conv2d(4, 4, 3), torch.nn.Conv1d(4, 4, 1)

    def linear_weight(self, x):
        return self.linear(x) + x * self.linear.weight[:2]

    def linear_bias(self, x):
        return self.linear(x) * self.linear.bias

    def conv_bias(self, x):
        return self.conv(x.view(1, 4, 2, 1).repeat(1, 1, 2, 3)) + self.conv.bias.view(4, 1, 1)

    def product(self, x):
        return torch.addmm(self.linear.bias, x, self.linear.weight) - self.linear.bias, x @ self.linear.weight

    def square(self, x):
        return self.linear.weight @ self.linear.weight + x[:1]

    def kernel(self, x):
        return self.short(self.short(x.view(1, 4, 2)).relu()) + self.short.weight[:, :2, 0]

    def joined(self, x):
        return torch.cat([self.linear.weight, self.linear(x)])

    def of_itself(self, x):
        return self.linear(self.linear.weight)[:2] + x

    def added(self, x):
        return torch.addmm(self.linear.bias, self.linear.weight, self.linear.weight)[:2] + x

    def transposed(self, x):
        image = x.view(1, 4, 2, 1).repeat(1, 1, 2, 4)
        return self.conv(torch.nn.functional.conv_transpose2d(image, self.conv.weight))

    def sums(self, x):
        return [torch.addmm(bias, x, self.linear.weight) for bias in (self.linear.bias[:1], self.linear.weight[:2])]

    def channels(self, x):
        image = self.conv(x.view(1, 4, 2, 1).repeat(1, 1, 2, 4))
        return image.softmax(-1), image.permute(0, 2, 3, 1).softmax(-1)

    def scaled(self, x):
        return torch.addmm(self.linear.bias, x, self.linear.weight, alpha=2.0, beta=0.5)

    def resized(self, x):
        return torch.nn.functional.interpolate(x[None, None], scale_factor=1.7, mode="bilinear")

    def rows(self, x):
        prelu = torch.nn.functional.prelu
        return prelu(x, self.linear.bias), prelu(x[:, :, None], self.linear.bias)

    def largest(self, x):
        image, kept = x[None, None] - 2.0, [(-1, True), (3, True), (2, True), (3, False), (1, True)]
        return [image.max(dimension, keepdim=keeps).values * 2 for dimension, keeps in kept]

def create():
    return Net()
"""


def test_a_weight_may_have_readers_beside_its_layer(build: Build, tmp_path: Path) -> None:
    """XNNPACK packs weights of layers and frees them, also if another operator of the delegate reads them. ExecuTorch
    does not find the bias of a layer whose weight is its input too. Both end the process of the runtime."""
    names = (
        *("linear_weight", "linear_bias", "conv_bias", "product", "square", "kernel"),
        *("joined", "of_itself", "added", "transposed", "rows", "sums", "scaled", "resized", "channels", "largest"),
    )
    methods = ", ".join(f"{name}: {{example_inputs: [{{shape: [2, 4]}}]}}" for name in names)
    head = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create", seed: 1}\n'
    built = build(f"{head}defaults: {{partitioners: [xnnpack]}}\nmethods: {{{methods}}}\n", model=PACKED)
    assert built.code == 0, built.err
    scope = dict[str, Any]()
    exec(PACKED, scope)
    torch.manual_seed(1)
    model, x = scope["create"](), torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    for name in names:
        [found] = runtime.run(built.directory / "net.pte", [[(name, [x])]], tmp_path)
        expected = getattr(model, name)(x)
        expected = [*expected] if isinstance(expected, tuple | list) else [expected]
        torch.testing.assert_close(found[0], expected, rtol=0.0, atol=1e-5)


COPIED = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.conv = torch.nn.Conv2d(3, 6, 1)

    def rows(self, x):
        row = self.linear(x)
        first, second = row.clone(), row.clone()
        first[0], second[1] = 1.0, 2.0
        return row.cumsum(0), first, second, first.relu(), row

    def boxes(self, image):
        box = self.conv(image).flatten(2).transpose(1, 2)
        corners = box.clone()
        corners[..., :2] = box[..., :2] - box[..., 2:4] / 2
        corners[..., 2:4] = box[..., :2] + box[..., 2:4] / 2
        corners[..., 4:] = box[..., 4:].sigmoid()
        return corners

def create():
    return Net()
"""


def test_a_clone_of_a_result_may_be_written(build: Build) -> None:
    """XNNPACK leaves copies out, and then a delegate returns one result twice, which ExecuTorch refuses."""
    methods = "rows: {example_inputs: [{shape: [2, 4]}]}, boxes: {example_inputs: [{shape: [1, 3, 2, 2]}]}"
    head = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create", seed: 1}\n'
    for quantize in ("", ", quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}"):
        built = build(f"{head}defaults: {{partitioners: [xnnpack]{quantize}}}\nmethods: {{{methods}}}\n", model=COPIED)
        assert built.code == 0, built.err


FILTER = """
import torch
from torch.nn import functional

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.change = torch.nn.Parameter(torch.eye(4) + 0.1)
        self.register_buffer("covariance", torch.eye(4))
        self.register_buffer("kernel", torch.ones(1, 1, 2, 2))
        self.register_buffer("slope", torch.full((1,), 0.25))

    def forward(self, x):
        found = [x @ self.covariance, functional.linear(x, self.covariance), functional.prelu(x, self.slope)]
        found.append(functional.conv2d(x[None, None], self.kernel))
        self.covariance.copy_(0.5 * self.change @ self.covariance @ self.change.T)
        self.kernel.mul_(0.5)
        self.slope.add_(1.0)
        return tuple(found)

def create():
    return Net()
"""


def test_weights_may_be_buffers_that_the_method_writes(build: Build, tmp_path: Path) -> None:
    """XNNPACK's partitioner takes each buffer for a constant. Filters and fast weights write theirs."""
    manifest = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
    manifest += "methods: {forward: {example_inputs: [{shape: [2, 4]}], partitioners: [xnnpack]}}\n"
    built = build(manifest, model=FILTER)
    assert built.code == 0, built.err
    scope = dict[str, Any]()
    exec(FILTER, scope)
    model, x = scope["create"](), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    [found] = runtime.run(built.directory / "net.pte", [[("forward", [x])] * 3], tmp_path)
    for results in found:
        torch.testing.assert_close(results, [*model(x)], rtol=0.0, atol=1e-5)


SPLIT = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, -1)
        return gate.sigmoid() * up

def create():
    return Net()

def fix(method, program):
    int(next(iter(program.graph.nodes)).meta["val"].shape[0])
    return []
"""
DYNAMIC = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  forward: {example_inputs: [{shape: [4, 6]}], dynamic_shapes: [[{dim: n, min: 1, max: 8}, null]]}
"""


def test_the_parts_of_a_split_keep_dynamic_sizes(build: Build, tmp_path: Path) -> None:
    built = build(DYNAMIC, model=SPLIT)
    assert built.code == 0, built.err
    inputs = [torch.randn(rows, 6) for rows in (1, 4, 8)]
    results = runtime.run(built.directory / "net.pte", [[("forward", [x])] for x in inputs], tmp_path)
    expected = [[[x[:, :3].sigmoid() * x[:, 3:]]] for x in inputs]
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-5)


def test_an_input_may_have_the_name_of_a_function(build: Build, tmp_path: Path) -> None:
    """PyTorch gives it another name while it decomposes the method. `Sequential` calls its input `input`."""
    model = SPLIT.replace("x)", "input)").replace("x.chunk", "input.chunk")
    built = build(DYNAMIC.replace("[xnnpack]", "[]"), model=model)
    assert built.code == 0, built.err
    x = torch.randn(7, 6)
    [[[found]]] = runtime.run(built.directory / "net.pte", [[("forward", [x])]], tmp_path)
    torch.testing.assert_close(found, x[:, :3].sigmoid() * x[:, 3:])


SHIFT = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return self.shifted(x @ torch.cat([x, x[:, 1:]], 1).mT)

    def square(self, x):
        return self.shifted(torch.cat([x, x[:, :, 1:]], 2))

    def shifted(self, x):
        heads, rows, _ = x.shape
        x = torch.nn.functional.pad(x, (1, 0)).view(heads, -1, rows)
        return x[:, 1:].view(heads, rows, -1).exp()

def create():
    return Net()
"""


@pytest.mark.parametrize(
    ("entry", "own_memory"), [("forward", False), ("forward", True), ("square", False)], ids=["view", "copy", "square"]
)
def test_memory_is_planned_for_the_largest_sizes(build: Build, tmp_path: Path, entry: str, own_memory: bool) -> None:
    """The relative shift of Transformer-XL. ExecuTorch planned too little memory for its views, and if they have memory
    of their own, that of the example. A dimension of two axes has two symbols, whose conditions were taken for others.
    """
    columns, shape = ("5", "{dim: n}") if entry == "square" else ("8", "null")
    manifest = f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create"}}
defaults: {{partitioners: []}}
executorch: {{remove_view_copy: {str(not own_memory).lower()}}}
methods:
  {entry}:
    example_inputs: [{{shape: [2, 5, {columns}]}}]
    dynamic_shapes: [[null, {{dim: n, min: 4, max: 32}}, {shape}]]
"""
    built = build(manifest, model=SHIFT)
    assert built.code == 0, built.err
    inputs = [torch.randn(2, rows, rows if entry == "square" else 8) for rows in (5, 32, 4)]
    results = runtime.run(built.directory / "net.pte", [[(entry, [x])] for x in inputs], tmp_path)
    names: dict[str, Any] = {}
    exec(SHIFT, names)
    expected = [[[getattr(names["create"](), entry)(x)]] for x in inputs]
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4)


def test_a_size_that_a_pass_fixes_is_an_error(build: Build) -> None:
    built = build(DYNAMIC + 'passes: {edge: ["model:fix"]}\n', model=SPLIT)
    assert built.code == 1
    assert "lowering fixes dimension 0 of the input `x`, which is dynamic\n    at model.py:" in built.err


def test_a_function_of_sizes_that_executorch_refuses_is_named(build: Build) -> None:
    built = build(DYNAMIC, model=SPLIT.replace("gate.sigmoid() * up", "x + torch.sym_max(x.shape[0] - 4, 0)"))
    assert built.code == 1
    assert "methods.forward: lowering forward failed: ExecuTorch cannot compute `sym_max` of sizes" in built.err
