"""The switch `trace_calls_once`: a decomposed method is the same, node for node, with names and all metadata."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executorch.exir.program._program import _default_decomposition_table
from torch import nn
from torch.export import Dim, ExportedProgram, exported_program
from torch.fx.traceback import NodeSource

from etplugins.accelerate import trace_calls_once

Method = Callable[..., Any]


class Net(nn.Module):
    """Calls a function with itself and its inputs."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(2)
        self.state = nn.Buffer(torch.zeros(8))
        self.cache = nn.Buffer(torch.zeros(2, 8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.method(self, x)


@torch.library.custom_op("traced_calls::twice", mutates_args=())  # type: ignore[untyped-decorator]
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def attention(net: Net, x: torch.Tensor) -> torch.Tensor:
    for layer in net.linears:
        q, k, v = [part.view(2, 8, 2, 4).transpose(1, 2) for part in (layer(x), layer(x), layer(x) + 1)]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = F.layer_norm(x + mixed.transpose(1, 2).reshape(2, 8, 8), (8,))
    return x


def views(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    for _ in range(3):
        x = x.view(2, 64).reshape(2, 8, 8).transpose(1, 2).contiguous().flatten(1).unflatten(1, (8, 8))
        x = x.select(0, 1).unsqueeze(0).expand(2, -1, -1)
    return x, x[0], x.view(-1) if x.is_contiguous() else x


def aliases(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, x.view(-1), x.view(-1), x.transpose(0, 1), x + 1, x


def one_argument_twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    return (x * x) * (x + 1) * (x * x) + (x * (x + 1))


def several_results(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for _ in range(3):
        one, other = x.chunk(2, -1)
        x = torch.cat([other, one], -1)
        largest, places = torch.topk(x, 2)
        x = x - x.max(-1, keepdim=True)[0] + largest[..., :1]
    return x, places


def literals(net: Net, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = (x + 0.0) * (x + -0.0) + torch.where(x > 0, x, torch.tensor(-1.0)) + (x + 0) * (x + False)
        x = x.to(torch.float64).to(torch.float32) * torch.arange(8) + torch.full((8,), 2.0)
    return x


def images(net: Net, x: torch.Tensor) -> torch.Tensor:
    x = x.view(2, 2, 4, 8)
    for layer in net.convolutions:
        x = F.relu(net.norm(layer(x)))
    return F.adaptive_avg_pool2d(F.interpolate(x, scale_factor=2), 1)


def written_buffer(net: Net, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        net.state.add_(x[0, 0])
        x = x + net.state
    return x


def written_cache(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    for layer in net.linears:
        net.cache[:, 1:3] = layer(x)[:, :2].detach()
        x = F.layer_norm(x + net.cache.view(2, 8, 8) + layer(net.cache.transpose(1, 2)), (8,))
    return x, net.cache.view(-1), net.cache[:, 0], net.cache.transpose(0, 1) + 1


def written_view(net: Net, x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    for _ in range(3):
        x.view(-1).add_(1)
        x = x * 2
    return x


def written_statistics(net: Net, x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = F.batch_norm(x, net.state, net.state + 1, training=True)
    return x


def random_numbers(net: Net, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(8) + torch.rand(8)


def custom(net: Net, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.ops.traced_calls.twice(x) + F.gelu(x)
    return x


def branches(net: Net, x: torch.Tensor) -> Any:
    for layer in net.linears:
        x = torch.cond(x.sum() > 0, lambda x, layer=layer: layer(x) + 1, lambda x: x * 2, (x,))
    return x


def sizes(net: Net, x: torch.Tensor) -> torch.Tensor:
    for layer in net.linears:
        x = F.layer_norm(layer(x) + x.shape[0], (8,))
        x = x.view(x.shape[0], -1).view(-1, 8, 8)
    return x


def parts(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The memory of the parts has the size of `x`, but each part has the same sizes for all of them."""
    return x[0].unsqueeze(0), x[1].unsqueeze(0) + 1, x[-1].flatten()


ALL = [
    *(attention, views, aliases, one_argument_twice, several_results, literals, images, written_buffer, written_view),
    *(written_cache, written_statistics, random_numbers, custom, branches, sizes, parts),
]


def exported(method: Method, dynamic: bool = False) -> ExportedProgram:
    torch.manual_seed(0)
    shapes = ({0: Dim("n", min=2, max=64)},) if dynamic else None
    with torch.no_grad():
        return torch.export.export(Net(method).eval(), (torch.randn(2, 8, 8),), dynamic_shapes=shapes)


def decomposed(program: ExportedProgram) -> list[ExportedProgram]:
    """What lowering makes of a program: a functional one, and one with fewer operators."""
    functional = copy.deepcopy(program).run_decompositions({})
    table = _default_decomposition_table()
    table.pop(torch.ops.aten.linear.default, None)
    return [functional, functional.run_decompositions(table)]


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        form = [str(each) for each in (*value.shape, *value.stride(), value.storage_offset(), value.dtype)]
        return type(value), form, value.requires_grad, str(value.untyped_storage().nbytes())
    if isinstance(value, NodeSource):
        return value.name, value.target, value.pass_name, described(value.from_node)
    if isinstance(value, (tuple, list)):
        return [described(each) for each in value]
    return repr(value)


def content(program: ExportedProgram) -> list[Any]:
    nodes = [
        (
            *(node.name, node.op, str(node.target), repr(node.args), repr(node.kwargs), [*map(str, node.users)]),
            [(key, described(value)) for key, value in node.meta.items() if key != "desc"],
        )
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]
    return [nodes, str(program.graph_signature), str(program.module_call_graph)]


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    found: list[None] = []
    repeat = trace_calls_once._Run._repeat

    def counted(*arguments: Any) -> Any:
        found.append(None)
        return repeat(*arguments)

    monkeypatch.setattr(trace_calls_once._Run, "_repeat", counted)
    return found


@pytest.mark.parametrize(("method", "dynamic"), [*((method, False) for method in ALL), (sizes, True), (parts, True)])
def test_a_method_is_decomposed_as_before(method: Method, dynamic: bool) -> None:
    program = exported(method, dynamic)
    expected = [*map(content, decomposed(program))]
    with trace_calls_once.trace_calls_once():
        assert [*map(content, decomposed(program))] == expected


def test_equal_calls_are_traced_once(repeats: list[None]) -> None:
    with trace_calls_once.trace_calls_once():
        decomposed(exported(attention))
    assert len(repeats) > 50


@pytest.mark.parametrize("method", [written_buffer, written_statistics])
def test_a_method_that_writes_is_traced_as_a_whole(method: Method, repeats: list[None]) -> None:
    with trace_calls_once.trace_calls_once():
        exported(method).run_decompositions({})
    assert not repeats


def test_a_functional_method_may_write_at_the_end(repeats: list[None]) -> None:
    functional, _ = decomposed(exported(written_cache))
    with trace_calls_once.trace_calls_once():
        functional.run_decompositions({})
    assert repeats


def test_no_two_nodes_share_a_tensor() -> None:
    with trace_calls_once.trace_calls_once():
        programs = decomposed(exported(attention))
    values = [node.meta["val"] for node in programs[-1].graph.nodes if node.op == "call_function"]
    assert len({id(value) for value in values}) == len(values)


def test_the_switch_is_undone() -> None:
    before = exported_program._decompose_exported_program
    with trace_calls_once.trace_calls_once():
        assert exported_program._decompose_exported_program is not before
    assert exported_program._decompose_exported_program is before
