"""A build finds what is lowered wrongly in a quantized method, although rounding moves its outputs by whole steps."""

from __future__ import annotations

import pytest

from etplugins.comparison import step

from .conftest import Build

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return torch.exp(self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3))))


def create():
    torch.manual_seed(0)
    return Net().eval()


def images():
    return [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def image():
    return images()[0]
"""

FAULTS = """\
from executorch.exir.dialects._ops import ops


def _calls(graph, word):
    return [node for node in graph.nodes if node.op == "call_function" and word in str(node.target)]


def right(graph):
    pass


def zero_point_of_the_output(graph):
    node = _calls(graph, "dequantize_per_tensor")[-1]
    node.update_arg(2, node.args[2] + 1)


def scale(graph):
    node = _calls(graph, "dequantize_per_tensor")[-1]
    node.update_arg(1, node.args[1] * 1.02)


def channels(graph):
    first, second, *_ = _calls(graph, "dequantize_per_channel")
    first.update_arg(1, second.args[1])


def bias(graph):
    _calls(graph, "convolution")[-1].update_arg(2, None)


def float_layer(graph):
    (exp,) = _calls(graph, "exp")
    with graph.inserting_after(exp):
        more = graph.call_function(ops.edge.aten.mul.Scalar, (exp, 1.01))
    more.meta = dict(exp.meta)
    exp.replace_all_uses_with(more)
    more.args = (exp, 1.01)


def edge(method, program):
    from torch.fx.passes.infra.pass_base import PassResult

    def plant(graph_module):
        globals()[method](graph_module.graph)
        graph_module.recompile()
        return PassResult(graph_module, True)

    return [plant]
"""
METHODS = {
    "portable": "right zero_point_of_the_output scale channels bias float_layer",
    "xnnpack": "right channels bias float_layer",
}


@pytest.mark.parametrize("backend", METHODS)
def test_each_fault_fails_the_build(backend: str, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_where", lambda *_: "")  # the search lowers each method several times
    methods = "".join(
        f'  {name}: {{entry: forward, example_inputs: [{{factory: "model:image"}}]}}\n'
        for name in METHODS[backend].split()
    )
    quantizers = "quantizers: [{backend: xnnpack, options: {per_channel: true}}]"
    quantize = f'{{pt2e: {{{quantizers}, calibration: {{factory: "model:images"}}}}}}'
    made = build(
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\npasses: {edge: ["faults:edge"]}\n'
        f"defaults: {{partitioners: [{backend}], quantize: {quantize}}}\nmethods:\n{methods}",
        model=MODEL,
        faults=FAULTS,
    )
    assert made.code == 1
    found = {name for name in METHODS[backend].split() if f"methods.{name}: the program computes" in made.err}
    assert found == {*METHODS[backend].split()} - {"right"}, made.err
