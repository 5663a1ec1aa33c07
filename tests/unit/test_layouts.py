"""The format of convolutions for CMSIS-NN, in methods that write to parts of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torch import nn
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from etbuild.errors import BuildError
from etplugins.edges import facts
from etplugins.edges.writes import check_observed
from etplugins.microcontrollers.layouts import channels_last


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)


class Before(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        y[:, 0] = 0
        return self.first(y)


class Between(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2
        first = self.first(y)
        y[:, 0] = 0
        return first, self.second(y), y


class After(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        y[:, 1] = 3
        return torch.relu_(y).flatten(1) * 2


class OfView(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        y.flatten(1).add_(3)
        return y * 2


def graph(module: nn.Module, x: torch.Tensor) -> torch.fx.GraphModule:
    return torch.export.export(module.eval(), (x,)).module(check_guards=False)


@pytest.mark.parametrize("kind", [Before, Between, After])
def test_copies_have_what_was_written(kind: type[nn.Module]) -> None:
    x = torch.randn(1, 3, 4, 4)
    made = graph(kind(), x)
    with torch.no_grad():
        expected = pytree.tree_leaves(made(x))
        actual = pytree.tree_leaves(channels_last(made)(x))
    assert any(node.kwargs.get("memory_format") is torch.channels_last for node in made.graph.nodes)
    torch.testing.assert_close(actual, expected)


def test_a_write_to_a_view_that_becomes_a_copy_is_refused() -> None:
    with pytest.raises(BuildError, match="writes to a value"):
        channels_last(graph(OfView(), torch.randn(1, 3, 4, 4)))


class Read(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        y[:, 0] = 0
        return y + self.first(x)


class Unread(Net):
    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu_(self.first(x))
        return torch.relu_(y.flatten(1)) + 1


@pytest.mark.parametrize(("kind", "lost"), [(Before, True), (Read, True), (Unread, False), (Net, False)])
def test_quantizing_loses_no_write(kind: type[nn.Module], lost: bool) -> None:
    x = torch.randn(1, 3, 4, 4)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(
        graph(nn.Sequential(nn.Conv2d(3, 3, 1), kind() if kind is not Net else nn.ReLU(True)), x), quantizer
    )
    if lost:
        with pytest.raises(BuildError, match="writes to a value"):
            check_observed(prepared.graph, ())
    else:
        check_observed(prepared.graph, ())


def test_an_output_that_is_an_input_has_its_edge() -> None:
    scale = 0.5, 3, -128, 127, torch.int8
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(2, dtype=torch.int8)
    operators = torch.ops.quantized_decomposed
    floats = graph.call_function(operators.dequantize_per_tensor.default, (x, *scale))
    moved = graph.call_function(torch.ops.aten.view.default, (x, [2]))
    graph.output((x, moved, floats))
    edge, same, other = facts.of_outputs([x, moved, floats])
    assert (
        edge
        == same
        == facts.of_inputs([x])[0]
        == {"scale": 0.5, "zero_point": 3, "least": -128, "most": 127, "dtype": "int8"}
    )
    assert other is None
