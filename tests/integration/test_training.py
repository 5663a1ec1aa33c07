"""Training on the device: a method that returns loss and gradients, with weights in named data."""

from __future__ import annotations

import pytest
import torch
from executorch.extension.pybindings.portable_lib import _load_for_executorch
from executorch.extension.training import TrainingModule, get_sgd_optimizer

from .conftest import Build

MODEL = """\
import torch
from torch.export.experimental import _export_forward_backward

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(self.linear.weight, 0.1)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x, label):
        return torch.nn.functional.cross_entropy(self.linear(x), label)

def create():
    return Net()

def joint(method, program):
    parameters = program.graph_signature.inputs_to_parameters
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in parameters:
            node.meta["val"].requires_grad_(True)
            program.state_dict[parameters[node.name]].requires_grad_(True)
    return _export_forward_backward(program)
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [4, 3]}, {shape: [4], dtype: int64}]}
passes: {aten: ["model:joint"]}
named_data: {weights: {parameters: ["linear.*"]}}
executorch: {external_mutable_weights: true}
"""


def test_a_device_trains_the_weights_of_named_data(build: Build) -> None:
    made = build(MANIFEST, model=MODEL)
    assert made.code == 0, made.err
    assert made.json("net.report.json")["bytes"]["external"]["weights"] == {"linear.bias": 8, "linear.weight": 24}
    program = _load_for_executorch(str(made.directory / "net.pte"), str(made.directory / "net.weights.ptd"))
    trained = TrainingModule(program)
    x, label = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]), torch.tensor([0, 1, 0, 1])

    # By hand: after autograd has run in a process, PyTorch's CUDA build refuses it in forks, where other tests build.
    weight, bias = torch.full((2, 3), 0.1), torch.zeros(2)
    losses = []
    for _ in range(5):
        scores = x @ weight.T + bias
        difference = (scores.softmax(1) - torch.nn.functional.one_hot(label)) / len(label)
        losses.append(trained.forward_backward("forward", (x, label))[0])
        torch.testing.assert_close(losses[-1], torch.nn.functional.cross_entropy(scores, label))
        torch.testing.assert_close(trained.named_gradients()["linear.weight"], difference.T @ x)
        get_sgd_optimizer(trained.named_parameters(), 0.5).step(trained.named_gradients())
        weight, bias = weight - 0.5 * difference.T @ x, bias - 0.5 * difference.sum(0)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("linear.*", "linear.weight", "`linear.bias` is trained but has no tag, so it would stay in the program"),
        ('passes: {aten: ["model:joint"]}', "", "no method trains a weight"),
    ],
)
def test_weights_inside_the_program_cannot_be_trained(build: Build, old: str, new: str, message: str) -> None:
    made = build(MANIFEST.replace(old, new), model=MODEL)
    assert made.code == 1
    assert f"executorch.external_mutable_weights: {message}" in made.err
