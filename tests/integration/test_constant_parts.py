"""What a method computes in each call: not what is always the same, and not what does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import nn

from etbuild.lower.method_graph import describe
from etplugins.upstream import constant_parts, core_operators, lowering, nonzero_rows, xnnpack
from tests.conformance.test_upstream_limits import Net

X = torch.arange(8.0).reshape(2, 4) - 3
Rows = {0: torch.export.Dim("n", min=2, max=8)}


def edge_of(net: nn.Module, *inputs: torch.Tensor, sizes: Any = None, delegated: bool = True) -> EdgeProgramManager:
    with torch.no_grad():
        program = torch.export.export(net.eval(), inputs, dynamic_shapes={"inputs": sizes} if sizes else None)
    return lowered(program, delegated)


def lowered(program: torch.export.ExportedProgram, delegated: bool = True) -> EdgeProgramManager:
    partitioners = {"forward": [XnnpackPartitioner()] if delegated else []}
    with lowering.around(), xnnpack.around(partitioners):
        edge = to_edge_transform_and_lower({"forward": program}, partitioner=partitioners)
    lowering.finish(edge)
    return edge


def outside(edge: EdgeProgramManager) -> list[str]:
    """The operators that no delegate has, such as `add.Tensor`."""
    names = [str(node.target.__name__) for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    return [name.removeprefix("aten.") for name in names if name not in ("getitem", "executorch_call_delegate")]


def check(edge: EdgeProgramManager, net: nn.Module, *inputs: torch.Tensor, state: bool = False) -> None:
    """Checks that two calls of the program compute what the module computes; with a state, only the second one: the
    state has no initial content here."""
    loaded = Runtime.get().load_program(bytes(edge.to_executorch().buffer))
    method = loaded.load_method("forward")
    for compared in (not state, True):
        with torch.no_grad():
            expected = net(*inputs)
        found = method.execute([each.clone() for each in inputs])
        if not compared:
            continue
        for one, other in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(one, other)


def grid(self: Any, x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(2), torch.arange(4), indexing="ij")
    places = (torch.stack([rows, columns]).sum(0) * 2 + 0.5) / 3
    return self.layer(x + places) * torch.tensor(2)


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"layer": nn.Linear(4, 4)}


CONSTANT: dict[str, Callable[..., Any]] = {
    "a grid": grid,
    "a number": lambda self, x: self.layer(x) * torch.tensor(3),
    "several results": lambda self, x: self.layer(x) + torch.arange(8.0).split(4)[1],
    "a minimum with its place": lambda self, x: self.layer(x) + torch.arange(8.0).reshape(2, 4).min(0)[0],
    "a constant of the code": lambda self, x: self.layer(x) + torch.tensor([1, 2, 3, 4]).flip(0),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_what_is_always_the_same_is_computed_once(name: str) -> None:
    net = Net(CONSTANT[name], **layers())
    edge = edge_of(net, X)
    assert outside(edge) == []
    check(edge, net, X)


STAYS: dict[str, tuple[Callable[..., Any], str]] = {
    "of a weight": (lambda self, x: self.layer(x) + self.table.flip(0), "flip"),
    "of a parameter": (lambda self, x: self.layer(x) + self.layer.bias.flip(0), "flip"),
    "of an input": (lambda self, x: self.layer(x) + x.flip(0), "flip"),
    "of random numbers": (lambda self, x: self.layer(x) * 0 + torch.rand(4).flip(0) * 0, "rand"),
    "of a size": (lambda self, x: self.layer(x) + torch.arange(x.shape[0])[:, None], "arange"),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", STAYS)
def test_what_may_change_is_computed_in_each_call(name: str) -> None:
    function, operator = STAYS[name]
    net = Net(function, table=torch.arange(4.0), **layers())
    edge = edge_of(net, X, sizes=(Rows,) if name == "of a size" else None)
    assert any(each.startswith(operator) for each in outside(edge))
    check(edge, net, X)
    if name == "of a size":
        check(edge, net, torch.randn(7, 4))


def test_a_buffer_that_the_method_writes_to_is_no_constant() -> None:
    def count(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(torch.arange(4) * 2)
        return x + self.seen

    net = Net(count, seen=torch.zeros(4, dtype=torch.int64))
    edge = edge_of(net, X)
    assert not any(each.startswith("arange") for each in outside(edge))


def test_a_large_result_is_computed_in_each_call() -> None:
    """A file must not grow by a mask that a few operators make."""

    def masked(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(512)
        return self.layer(x).sum() + (rows[:, None] >= rows).float()

    net = Net(masked, **layers())
    edge = edge_of(net, X)
    assert any(each.startswith("ge") for each in outside(edge))
    assert len(edge.to_executorch().buffer) < 20_000
    check(edge, net, X)


def test_a_method_may_return_what_is_always_the_same() -> None:
    net = Net(lambda self, x: (x + 1, torch.arange(4) * 2, torch.arange(3), self.table), table=torch.arange(4.0))
    check(edge_of(net, X), net, X)


def test_the_description_of_a_graph_says_what_was_computed() -> None:
    described: Any = describe(edge_of(Net(grid, **layers()), X).exported_program())
    computed = described["computed"]
    assert computed["operators"]["aten::arange.start_step"] == 2
    assert computed["constants"] == 2
    assert 32 <= computed["bytes"] <= 64


@pytest.mark.parametrize("delegated", [True, False])
def test_other_programs_keep_their_bytes(delegated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(lambda self, x: (self.layer(x).relu() + x.mean(0, keepdim=True), self.table), table=X, **layers())
    changed = edge_of(net, X, delegated=delegated).to_executorch().buffer
    monkeypatch.setattr(constant_parts, "computed_once", nonzero_rows.row_major)
    assert edge_of(net, X, delegated=delegated).to_executorch().buffer == changed


IDLE: dict[str, Callable[..., Any]] = {
    "a view": lambda self, x: self.layer(x).view(2, 4) * 2,
    "an expansion": lambda self, x: self.layer(x).expand(2, 4) * 2,
    "a copy": lambda self, x: self.layer(x).clone() * 2,
    "a slice": lambda self, x: self.layer(x)[:, 0:4] * 2,
    "a repetition": lambda self, x: self.layer(x).repeat(1, 1) * 2,
    "the same dtype": lambda self, x: self.layer(x).to(torch.float32, copy=True) * 2,
}


@pytest.mark.parametrize("name", IDLE)
@pytest.mark.parametrize("sizes", [None, (Rows,)])
def test_operators_that_do_nothing_are_left_out(name: str, sizes: Any) -> None:
    net = Net(IDLE[name], **layers())
    edge = edge_of(net, X, delegated=False, sizes=sizes if name in ("a copy", "the same dtype") else None)
    assert [each for each in outside(edge) if not each.startswith(("linear", "addmm", "permute", "mul"))] == []
    check(edge, net, X)


@pytest.mark.filterwarnings("ignore:Mutation on a buffer")
def test_a_copy_of_a_written_buffer_keeps_its_old_content() -> None:
    def write(self: Any, x: torch.Tensor) -> Any:
        old = self.last.clone()
        self.last.copy_(x)
        return old.view(2, 4), old * 2

    net = Net(write, last=torch.zeros(2, 4))
    check(edge_of(net, X), Net(write, last=torch.zeros(2, 4)), X, state=True)


def attention(self: Any, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    if self.causal:
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return nn.functional.scaled_dot_product_attention(self.layer(x), x * 2, x, attn_mask=mask)


@pytest.mark.parametrize("causal", [False, True])
def test_an_attention_without_masked_rows_has_no_guards(causal: bool) -> None:
    net, x = Net(attention, causal=causal, **layers()), torch.randn(1, 2, 4, 4)
    edge = edge_of(net, x)
    assert outside(edge) == []
    check(edge, net, x)


def test_an_attention_with_masked_rows_keeps_its_guards() -> None:
    net, x = Net(attention, causal=False, **layers()), torch.randn(1, 2, 4, 4)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    edge = edge_of(net, x, mask)
    assert any(each.startswith("where") for each in outside(edge))
    check(edge, net, x, mask)


def test_a_weight_has_the_shape_in_which_it_is_read() -> None:
    net = Net(lambda self, x: self.conv(x[:, :, None]), conv=nn.Conv3d(3, 2, (1, 3, 3)))
    image = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        program = torch.export.export(net.eval(), (image,))
    core_operators.make_lowerable(program, ())
    edge = lowered(program)
    assert not any("convolution" in each for each in outside(edge))
    check(edge, net, image)


def masked_twice(self: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = torch.tensor([0, 0, -math.inf, -math.inf]), torch.tensor([-math.inf, -math.inf, 0, 0])
    return torch.ops.aten._safe_softmax(x @ x.mT + one + other, -1) * 1


def masked_columns(self: Any, x: torch.Tensor) -> torch.Tensor:
    mask = torch.tensor([0, 0, -math.inf, -math.inf])
    return torch.ops.aten._safe_softmax((x @ x.mT + mask).mT, -1) * 1


@pytest.mark.parametrize("scores", [masked_twice, masked_columns])
def test_guards_stay_where_masks_together_leave_no_score(scores: Callable[..., Any]) -> None:
    net, x = Net(scores), torch.randn(1, 4, 4)
    edge = edge_of(net, x)
    assert any(each.startswith("where") for each in outside(edge))
    check(edge, net, x)


def test_a_method_without_inputs_computes_what_is_always_the_same() -> None:
    net = Net(lambda self: torch.arange(10) * 2 + 1)
    check(edge_of(net), net)


def test_a_weight_that_is_no_layers_keeps_its_shape() -> None:
    """Other programs may read it from the same file."""
    net, x = Net(lambda self, x: x * self.weight.view(4, 2).sum(0), weight=nn.Parameter(torch.rand(2, 4))), X[:, :2]
    edge = edge_of(net, x)
    assert edge.exported_program().state_dict["weight"].shape == (2, 4)
    check(edge, net, x)
