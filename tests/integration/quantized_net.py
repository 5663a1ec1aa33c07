"""A model for quantizers, and how far a program of it is from the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.helpers.runtime import run

from .conftest import Outcome

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(64, 128)
        self.body = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU())
        self.head = torch.nn.Linear(128, 32)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.body(x))

    def text(self, tokens):
        return self.head(self.embedding(tokens))

def create():
    return Net()

def batches(count=2):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 128, generator=generator) for _ in range(count)]

def one_batch(batch):
    return [eval(batch)]

def train(prepared):
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.001)
    for batch in batches():
        prepared(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with open("trained", "w") as file:
        file.write("yes")

def add_a_relu(graph_module):
    for node in list(graph_module.graph.nodes):
        if node.op == "output":
            with graph_module.graph.inserting_before(node):
                last = node.args[0][0]
                node.args = ((graph_module.graph.call_function(torch.ops.aten.relu.default, (last,)),),)
    graph_module.recompile()
    return graph_module

def no_graph(graph_module):
    return 3

def config(bits, mapping="SYMMETRIC"):
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, MappingType, PerAxis
    dtypes = {4: torch.int4, 8: torch.int8}
    return Int8DynamicActivationIntxWeightConfig(
        weight_dtype=dtypes[bits], weight_granularity=PerAxis(0), weight_mapping_type=MappingType[mapping]
    )
"""


def module() -> torch.nn.Module:
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    return scope["create"]()


def errors_of(made: Outcome, tmp_path: Path, *methods: str) -> list[float]:
    """Returns the errors of methods against eager PyTorch in fp32, relative to the size of their outputs."""
    inputs = torch.randn(2, 128, generator=torch.Generator().manual_seed(7))
    (outputs,) = run(made.directory / "net.pte", [[(method, [inputs]) for method in methods]], tmp_path)
    net = module()
    with torch.no_grad():
        expected = [getattr(net, method)(inputs) for method in methods]
    return [float((out - want).norm() / want.norm()) for (out,), want in zip(outputs, expected, strict=True)]


def error_of(made: Outcome, tmp_path: Path, method: str = "forward") -> float:
    return errors_of(made, tmp_path, method)[0]
