"""A build runs each method and compares it with the exported one: what lowering breaks fails the build."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export

from etplugins.comparison import accuracy, compare, locate
from etplugins.comparison.graph import Rounding

from .conftest import Build

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))
        self.short, self.rows = nn.Linear(4, 4).bfloat16(), nn.Embedding(8, 4)

    def swapped(self, x):
        return self.first(x) + self.second(x).tanh()

    def dropped(self, x):
        return self.first(x).relu()

    def scaled(self, x):
        return self.first(x)

    def counted(self, x):
        self.count.add_(1)
        return x + self.count

    def sized(self, x):
        return x * x.shape[0]

    def masked(self, x):
        return self.first(x).tanh().masked_fill(torch.tensor([True, False, True, False]), -1e9)

    def halved(self, x):
        return self.short(x) * 1.125

    def looked_up(self, tokens):
        return self.rows(tokens)


def create():
    torch.manual_seed(0)
    return Net().eval()


def batches():
    return [(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),)]
"""

# Each method is lowered wrongly in one way.
MUTATIONS = """\
import torch
from executorch.exir.dialects._ops import ops


def _calls(graph, word):
    return [node for node in graph.nodes if node.op == "call_function" and word in str(node.target)]


def swapped(graph):
    first = next(node for node in graph.nodes if "first_weight" in node.name)
    second = next(node for node in graph.nodes if "second_weight" in node.name)
    users = [*second.users]
    first.replace_all_uses_with(second)
    for user in users:
        user.replace_input_with(second, first)


def dropped(graph):
    (relu,) = _calls(graph, "relu")
    relu.replace_all_uses_with(relu.args[0])
    graph.erase_node(relu)


def scaled(graph):
    node = _calls(graph, "dequantize_per_tensor")[-1]
    node.update_arg(1, node.args[1] * 2)


def counted(graph):
    (output,) = (node for node in graph.nodes if node.op == "output")
    (count,) = (node for node in graph.nodes if node.op == "placeholder" and "count" in node.name)
    with graph.inserting_before(output):
        kept = graph.call_function(ops.edge.aten.mul.Tensor, (count, count))
        kept.meta = dict(output.args[0][0].meta)
    output.args = ((kept, *output.args[0][1:]),)


def sized(graph):
    for node in _calls(graph, "sym_size"):
        node.replace_all_uses_with(2)
        graph.erase_node(node)


def masked(graph):
    (tanh,) = _calls(graph, "tanh")
    tanh.replace_all_uses_with(tanh.args[0])
    graph.erase_node(tanh)


def halved(graph):
    (product,) = _calls(graph, "mul")
    product.replace_all_uses_with(product.args[0])
    graph.erase_node(product)


def looked_up(graph):
    (rows,) = _calls(graph, "embedding")
    weight, tokens = rows.args
    with graph.inserting_before(rows):
        first = graph.call_function(ops.edge.aten.sub.Tensor, (tokens, tokens))
        first.meta = dict(tokens.meta)
    rows.args = (weight, first)


def edge(method, program):
    from torch.fx.passes.infra.pass_base import PassResult

    def mutate(graph_module):
        globals()[method](graph_module.graph)
        graph_module.recompile()
        return PassResult(graph_module, True)

    return [mutate]
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  swapped: {example_inputs: [{shape: [2, 4]}]}
  dropped: {example_inputs: [{shape: [2, 4]}]}
  scaled:
    example_inputs: [{shape: [2, 4]}]
    quantize: {pt2e: {quantizers: [xnnpack], calibration: {factory: "model:batches"}}}
  counted: {example_inputs: [{shape: [2, 4]}]}
  sized: {example_inputs: [{shape: [2, 4]}], dynamic_shapes: [[{dim: n, max: 8}, null]]}
  masked: {example_inputs: [{shape: [2, 4]}]}
  halved: {example_inputs: [{shape: [2, 4], dtype: bfloat16}]}
  looked_up: {example_inputs: [{shape: [2, 4], dtype: int64}]}
"""


def test_what_is_lowered_rightly_builds(build: Build) -> None:
    made = build(MANIFEST, model=MODEL)
    assert made.code == 0, made.err
    assert "not compared" not in made.err


CALLS = {
    "swapped": "a call with random inputs",
    "dropped": "a call with random inputs",
    "scaled": "a call with random inputs",
    "counted": "the second call",
    "sized": "a call with random inputs of the shapes [1, 4]",
    "masked": "a call with random inputs",
    "halved": "a call with random inputs",
    "looked_up": "a call with random inputs",
}
"""For each method, the call that shows its mutation at the latest."""


def test_each_kind_of_mutation_fails_the_build(build: Build) -> None:
    made = build(f'{MANIFEST}passes: {{edge: ["mutations:edge"]}}\n', model=MODEL, mutations=MUTATIONS)
    assert (made.code, made.files) == (1, [])
    for method, call in CALLS.items():
        (line,) = (line for line in made.err.splitlines() if f"methods.{method}: " in line)
        assert "computes something else than the exported method" in line
        assert call in line or "the call with the example inputs" in line
    assert made.err.count("the operator was searched for only in the first wrong method") == len(CALLS) - 1


ENLARGED = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 2, bias=False)
        self.last.weight.data.copy_(torch.tensor([1.0, -1.0] * 8).reshape(2, 8))

    def forward(self, x):
        return self.last((x.tanh() / 50).exp())


def create():
    return Net().eval()
"""
IMPRECISE = """\
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult


def edge(method, program):
    def imprecise(graph_module):
        graph = graph_module.graph
        for node in graph.find_nodes(op="call_function", target=ops.edge.aten.exp.default):
            with graph.inserting_after(node):
                near = graph.call_function(ops.edge.aten.add.Tensor, (node, node.args[0]), {"alpha": 0.02})
            near.meta = dict(node.meta)
            node.replace_all_uses_with(near, delete_user_cb=lambda user: user is not near)
        graph_module.recompile()
        return PassResult(graph_module, True)

    return [imprecise]
"""
LATER = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\npasses: {edge: ["mutations:edge"]}\n'


def test_an_operator_is_blamed_whose_small_error_a_later_one_enlarges(build: Build) -> None:
    text = f"{LATER}methods: {{forward: {{example_inputs: [{{shape: [2, 8]}}]}}}}\n"
    made = build(text, model=ENLARGED, mutations=IMPRECISE)
    assert (made.code, made.files) == (1, [])
    assert "the first wrong operator of `forward` is `aten.exp.default`" in made.err
    assert "at model.py:12, in forward: `return self.last((x.tanh() / 50).exp())`" in made.err


def test_a_search_that_takes_too_long_says_how_far_it_came(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LEAST_WORK", "_TIMES"):
        monkeypatch.setattr(locate, name, 0)
    text = f"{LATER}methods: {{forward: {{example_inputs: [{{shape: [2, 8]}}]}}}}\n"
    made = build(text, model=ENLARGED, mutations=IMPRECISE)
    assert "the first wrong operator of `forward` is one of 4, from `aten.tanh.default`" in made.err
    assert "to `aten.linear.default`" in made.err


SPLIT = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        first, second = torch.topk(x.sin(), 2)[0].split(1, -1)
        return first.cos() * second


def create():
    return Net().eval()
"""
SWAPPED = """\
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult


def edge(method, program):
    def dropped(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=ops.edge.aten.topk.default):
            node.args = (*node.args[:2], -1, False)
        graph_module.recompile()
        return PassResult(graph_module, True)

    return [dropped]
"""


def test_an_operator_with_several_results_is_blamed(build: Build) -> None:
    text = f"{LATER}methods: {{forward: {{example_inputs: [{{shape: [2, 8]}}]}}}}\n"
    made = build(text, model=SPLIT, mutations=SWAPPED)
    assert "the first wrong operator of `forward` is `aten.topk.default`" in made.err


BATCH_NORMS = """\
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(4, 4, 3), nn.Linear(4, 4)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.plain = nn.ModuleList(nn.BatchNorm2d(4, affine=False) for _ in range(2))
        for number, norm in enumerate([*self.norms, *self.plain]):
            norm.running_mean.copy_(torch.arange(4.0) * number)
            norm.running_var.copy_(torch.arange(1.0, 5.0) + 3 * number)

    def one_layer(self, x, y):
        return self.norms[0](self.conv(x)), self.norms[1](self.conv(y))

    def without_weights(self, x):
        return self.plain[1](self.plain[0](x).relu())

    def two_activations(self, x):
        return F.relu(F.relu6(self.conv(x) * 10)), F.hardtanh(F.relu(self.conv(x)))

    def repeated(self, x):
        return x.repeat([1] * 14 + [2, 1])


def create():
    torch.manual_seed(0)
    return Net().eval()
"""
IMAGES = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  one_layer: {example_inputs: [{shape: [1, 4, 6, 6]}, {shape: [1, 4, 4, 4]}]}
  without_weights: {example_inputs: [{shape: [1, 4, 6, 6]}]}
  two_activations: {example_inputs: [{shape: [1, 4, 6, 6]}]}
"""


def test_layers_with_several_batch_norms_or_activations_are_right(build: Build) -> None:
    made = build(IMAGES, model=BATCH_NORMS)
    assert made.code == 0, made.err


def test_a_method_that_no_call_can_run_fails_the_build(build: Build) -> None:
    """It names the operator and the line: ExecuTorch's kernel does not repeat into 16 dimensions."""
    made = build(f"{IMAGES}  repeated: {{example_inputs: [{{shape: [2, 4]}}]}}\n", model=BATCH_NORMS)
    assert (made.code, made.files) == (1, [])
    assert "methods.repeated: the runtime cannot run `repeated`" in made.err
    assert "the first wrong operator of `repeated` is `aten.repeat.default`" in made.err
    assert "at model.py:26, in repeated: `return x.repeat([1] * 14 + [2, 1])`" in made.err


HEAD = """\
import torch
from torch import nn


def create():
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(256, 10)).eval()


def batches():
    return [(torch.randn(2, 256, 2, 2, generator=torch.Generator().manual_seed(0)),)]
"""


def test_a_batch_that_grows_is_compared_on_one_loaded_method(build: Build) -> None:
    text = (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        "methods: {forward: {example_inputs: [{shape: [2, 256, 2, 2]}],\n"
        "  dynamic_shapes: [[{dim: n, min: 1, max: 4}, null, null, null]]}}\n"
        "defaults: {partitioners: [xnnpack], quantize: {pt2e: {calibration: {factory: 'model:batches'},\n"
        "  quantizers: [{backend: xnnpack, options: {per_channel: true}}]}}}\n"
    )
    made = build(text, model=HEAD)
    assert (made.code, made.files) == (1, [])
    assert "in a call with random inputs of the shapes [4, 256, 2, 2]" in made.err
    assert "lowered again from this manifest for the sizes of this call only, is right if this call is" in made.err
    assert "So dynamic sizes or earlier calls make the difference" in made.err


def test_rounding_explains_what_a_model_amplifies() -> None:
    expected, actual = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 2])
    assert not accuracy.unexplained([actual], [expected], [[actual]], None, False)
    assert accuracy.unexplained([actual], [expected], [[expected]], None, False)
    near, far = torch.ones(3) + 0.01, torch.ones(3) + 1
    assert not accuracy.unexplained([near], [torch.ones(3)], [[torch.ones(3) + 0.005]], None, False)
    assert accuracy.unexplained([far], [torch.ones(3)], [[torch.ones(3) + 0.005]], None, False)
    assert not accuracy.unexplained([far], [torch.ones(3)], [[torch.ones(3) + 0.005]], None, False, beyond=256)


def test_large_methods_are_sampled_again_only_if_that_may_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = torch.ones(3)
    method: Any = SimpleNamespace(program=export(nn.ReLU(), (one,)), settings=SimpleNamespace(tolerance=None))
    files: Any = None

    def samples_of(actual: torch.Tensor) -> int:
        compared = compare.Comparison([], files, tmp_path)
        monkeypatch.setattr(compared, "_sampled", 1 << 40)
        made = set[int]()
        monkeypatch.setattr(compared, "_sample", made.add)
        assert compared._wrong([actual], [one], method, lambda _: [one + 0.005])
        return len(made)

    assert samples_of(one + 1) == 8
    assert samples_of(one + 100) == 1


def test_a_rounding_that_a_method_cannot_compute_explains_nothing(tmp_path: Path) -> None:
    class Indexed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_tensor([1.0, 2.0, 3.0, 4.0])[(x * 4).long()]

    almost_four = torch.full((64,), 1 - 2.0**-24)
    program = export(Indexed(), (almost_four,))
    method: Any = SimpleNamespace(name="forward", program=program, weights={}, settings=SimpleNamespace(tolerance=None))
    files: Any = None
    compared = compare.Comparison([method], files, tmp_path)
    compared._history.append((method, [almost_four]))
    expected = program.module()(almost_four)
    assert not compared._wrong([expected], [expected], method, lambda sample: sample.outputs)
    assert compared._wrong([expected + 1], [expected], method, lambda sample: sample.outputs)


def test_what_rounding_does_to_one_element_excuses_no_other() -> None:
    expected, wrong = torch.tensor([-1e9, 0.5, 0.0]), torch.tensor([-1e9, 0.6, 0.0])
    moved = torch.tensor([-1e9 + 600, 0.5, 0.0])
    assert accuracy.unexplained([wrong], [expected], [[moved]], None, False)
    assert not accuracy.unexplained([moved], [expected], [[moved]], None, False)
    undefined = torch.tensor([float("nan"), 0.5, 0.0])
    assert accuracy.unexplained([wrong], [expected], [[undefined]], None, False)
    found, other, longer = torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([1, 2, 3, 4])
    assert not accuracy.unexplained([other], [found], [[torch.tensor([3])]], None, False)
    assert accuracy.unexplained([longer], [found], [[torch.tensor([3])]], None, False)
    first, far = torch.tensor([0, 5]), torch.tensor([50, 5])  # indices of equal numbers
    assert not accuracy.unexplained([far], [first], [[torch.tensor([1, 5])]], None, False)


PASS_OF_FILE = """\
import subprocess


def edge(method, program):
    from torch.fx.passes.infra.pass_base import PassResult

    def maybe(graph_module):
        if subprocess.call(["test", "-s", {flag!r}]) == 0:
            (tanh,) = (node for node in graph_module.graph.nodes if "tanh" in str(node.target))
            tanh.replace_all_uses_with(tanh.args[0])
            graph_module.graph.erase_node(tanh)
            graph_module.recompile()
        return PassResult(graph_module, True)

    return [maybe]
"""


def test_another_program_of_the_same_key_is_compared_again(build: Build, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    passes = PASS_OF_FILE.format(flag=str(flag))
    text = (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        'methods: {masked: {example_inputs: [{shape: [2, 4]}]}}\npasses: {edge: ["mutations:edge"]}\n'
    )
    cache = tmp_path / "cache"
    assert build(text, "--cache-dir", str(cache), model=MODEL, mutations=passes).code == 0
    flag.write_text("1", "utf-8")
    made = build(text, "--cache-dir", str(cache), model=MODEL, mutations=passes)
    assert made.code == 1
    assert "computes something else than the exported method" in made.err


def test_a_number_is_rounded_alike_in_a_large_and_a_small_tensor() -> None:
    large = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0))
    whole = Rounding(1).of(large)
    assert not torch.equal(whole, large)
    for part in (slice(0, 2), slice(150, 151), slice(299, 300)):
        assert torch.equal(Rounding(1).of(large[part]), whole[part])
    assert torch.equal(Rounding(1).of(large.t()), whole.t())
    assert torch.equal(Rounding(1).of(large[:1].expand(300, 1000)), whole[:1].expand(300, 1000))
