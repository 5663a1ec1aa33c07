"""Which calls a build compares: they must show faults of many kinds. The program here is another graph in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from etplugins.comparison import compare, hints
from etplugins.comparison.graph import Graph, buffers
from etplugins.comparison.parts import MethodComparison

Function = Callable[..., torch.Tensor]
WORK = 200_000_000


class Runtime:
    """Runs an exported method where the comparison expects ExecuTorch's runtime."""

    def __init__(self, program: ExportedProgram) -> None:
        self._graph = Graph(program, buffers(program, ()), {})

    def load(self, method: str) -> None:
        """Loads nothing."""

    def kernels(self, method: str) -> Sequence[str]:
        """Calls none."""
        return ()

    def call(self, method: str, leaves: Sequence[Any]) -> list[Any]:
        """Calls the method."""
        return self._graph.call(leaves)[0]

    def state(self, method: str, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Shows no state."""
        return {}


def net(function: Function, count: int) -> nn.Module:
    """A module that computes a function of one or two inputs, with the same weights each time."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.rows = nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(500, 4)
            self.register_buffer("state", torch.zeros(20))
            self.register_buffer("cache", torch.zeros(32, 4))

    class One(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(self, x)

    class Two(Net):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return function(self, x, y)

    return (One() if count == 1 else Two()).eval()


def compared(
    right: Function,
    made: Function,
    inputs: tuple[torch.Tensor, ...],
    sizes: Any = None,
) -> tuple[compare.Wrong | None, dict[str, str]]:
    """What a comparison says of a program that computes `made` where the model computes `right`."""
    one, other = (torch.export.export(net(each, len(inputs)), inputs, dynamic_shapes=sizes) for each in (right, made))
    method = compare.ComparedMethod("forward", one, list(inputs), MethodComparison(None, (), None))
    files: Any = "the runtime here reads none"
    comparison = compare.Comparison([method], files, Path(), sessions=lambda *_: Runtime(other))
    return comparison.first_wrong(WORK), comparison.notes


def tapped(net: nn.Module, x: torch.Tensor, first: int) -> torch.Tensor:
    """A window over the last 20 numbers."""
    window = torch.cat([net.state[1:], x])
    net.state.copy_(window)
    return (window[first:] * torch.arange(1, 21)[first:]).sum()


def counted(net: nn.Module, x: torch.Tensor, most: int) -> torch.Tensor:
    """A counter."""
    result = x + net.state[0]
    net.state.copy_((net.state + 1).clamp(max=most))
    return result


def cached(net: nn.Module, x: torch.Tensor, row: torch.Tensor, last: int) -> torch.Tensor:
    """Rows of a cache."""
    net.cache.index_copy_(0, row.clamp(max=last), x)
    return net.cache.cumsum(0)


def kept(net: nn.Module, x: torch.Tensor, row: torch.Tensor, most: float) -> torch.Tensor:
    """The sum of a cache that holds no numbers beyond a limit. It shows what earlier calls have left."""
    result = net.cache.sum(0, keepdim=True) + x
    net.cache.index_copy_(0, row, x.clamp(-most, most))
    return result


FLOATS, TOKENS, NUMBERS = torch.ones(2, 8), torch.zeros(1, 6, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
MASK, IMAGE = torch.ones(2, 8, dtype=torch.bool), torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
LENGTH = ({1: Dim("length", min=2, max=64)},)
LENGTHS = LENGTH * 2
ONES = torch.ones(2, 8, dtype=torch.int64)
ROW = (torch.ones(1, 4), torch.zeros(1, dtype=torch.int64))
AREA = ({0: Dim("height", min=2, max=16), 1: Dim("width", min=2, max=16)},)
FAULTS: dict[str, tuple[Function, Function, tuple[torch.Tensor, ...], Any]] = {
    "a limit": (lambda net, x: x.clamp(-10, 10), lambda net, x: x.clamp(-10, 12), (FLOATS,), None),
    "a limit behind a layer": (lambda net, x: F.relu6(net.a(x)), lambda net, x: F.relu(net.a(x)), (FLOATS,), None),
    "a threshold": (lambda net, x: F.threshold(x, 20, 0), lambda net, x: F.threshold(x, 21, 0), (FLOATS,), None),
    "a scale": (lambda net, x: net.a(x / 32768), lambda net, x: net.a(x * 0), (FLOATS,), None),
    "an exponential": (lambda net, x: x.softmax(1), lambda net, x: x.exp() / x.exp().sum(1, True), (FLOATS,), None),
    "a small number": (lambda net, x: torch.log1p(x), lambda net, x: torch.log(1 + x), (FLOATS,), None),
    "zero": (lambda net, x: x.sign(), lambda net, x: (x >= 0).float() * 2 - 1, (FLOATS,), None),
    "only positive numbers": (
        lambda net, x: net.a(x.log()).sum(1),
        lambda net, x: 3 * net.a(x.log()).sum(1),
        (-FLOATS,),
        None,
    ),
    "the last token": (lambda net, x: net.rows(x), lambda net, x: net.rows(x.clamp(max=498)), (TOKENS,), None),
    "large integers": (lambda net, x: x * 3, lambda net, x: (x.int() * 3).long(), (NUMBERS,), None),
    "integers beyond a double": (lambda net, x: x + 1, lambda net, x: (x.double() + 1).long(), (NUMBERS,), None),
    "negative integers": (lambda net, x: x // 7, lambda net, x: x.div(7, rounding_mode="trunc"), (NUMBERS,), None),
    "the end of a dtype": (lambda net, x: x.float() / 255, lambda net, x: x.clamp(max=250) / 255, (IMAGE,), None),
    "a comparison": (lambda net, x: (x > 500).long(), lambda net, x: (x >= 500).long(), (NUMBERS,), None),
    "no element of a mask": (
        lambda net, x, y: x.masked_fill(y, -5),
        lambda net, x, y: x.masked_fill(y, -5) + (~y.any()).float(),
        (FLOATS, MASK),
        None,
    ),
    "each element of a mask": (
        lambda net, x, y: x.masked_fill(y, -5),
        lambda net, x, y: x.masked_fill(y, -5) + y.all().float(),
        (FLOATS, ~MASK),
        None,
    ),
    "odd sizes": (lambda net, x: x * 2, lambda net, x: x * 2 + x.shape[1] % 2, (FLOATS,), LENGTH),
    "two sizes": (lambda net, x: x * 2, lambda net, x: x * 2 + x.shape[1] - x.shape[0], (torch.ones(4, 4),), AREA),
    "a counter": (
        lambda net, x: counted(net, x, 1000),
        lambda net, x: counted(net, x, 12),
        (FLOATS,),
        None,
    ),
    "the oldest tap": (lambda net, x: tapped(net, x, 0), lambda net, x: tapped(net, x, 1), (torch.ones(1),), None),
    "the last row of a cache": (
        lambda net, x, y: cached(net, x, y, 31),
        lambda net, x, y: cached(net, x, y, 30),
        ROW,
        None,
    ),
    "what a large number leaves": (
        lambda net, x, y: kept(net, x, y, 1e9),
        lambda net, x, y: kept(net, x, y, 20),
        ROW,
        None,
    ),
    "any row of a table": (
        lambda net, x: net.rows(x),
        lambda net, x: net.rows(x) * (x != 237).unsqueeze(-1),
        (TOKENS,),
        LENGTH,
    ),
    "a row from negative numbers": (
        lambda net, x: net.rows(x.abs().clamp(max=499)),
        lambda net, x: net.rows(x.clamp(0, 499)),
        (TOKENS,),
        None,
    ),
    "a mask of integers": (
        lambda net, x, y: (x * (y != 0)).sum(1) / y.shape[1],
        lambda net, x, y: x.sum(1) / y.shape[1],
        (FLOATS, ONES),
        LENGTHS,
    ),
    "counts in a mask": (
        lambda net, x, y: (x * y).sum(1),
        lambda net, x, y: (x * y.clamp(max=127)).sum(1),
        (FLOATS, ONES),
        LENGTHS,
    ),
    "any size": (lambda net, x: x * 2, lambda net, x: x * 2 + (x.shape[1] == 17), (FLOATS,), LENGTH),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_calls_show_a_fault(fault: str) -> None:
    right, wrong, inputs, sizes = FAULTS[fault]
    assert compared(right, wrong, inputs, sizes)[0] is not None
    assert compared(right, right, inputs, sizes)[0] is None


def test_a_weight_that_no_call_shows_is_noted() -> None:
    def rarely(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 1e7, net.b(x), net.a(x))

    wrong, notes = compared(rarely, rarely, (FLOATS,))
    assert wrong is None
    assert notes == {"forward": "in calls that do not show whether `b.weight` and `b.bias` matter"}


def test_what_a_softmax_ignores_is_not_noted() -> None:
    def attention(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x @ net.b(x).mT).softmax(1) @ net.a(x)

    assert compared(attention, attention, (FLOATS,)) == (None, {})


def test_an_input_that_no_call_shows_is_noted() -> None:
    def hidden(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return net.a(x) + (y * 1e-12).tanh()

    wrong, notes = compared(hidden, hidden, (FLOATS, FLOATS + 1))
    assert wrong is None
    assert notes == {"forward": "in calls that do not show whether `input 1` matters"}


def test_a_side_of_a_limit_that_no_call_shows_is_noted() -> None:
    def limited(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net.a(x.sigmoid().clamp(max=2))

    wrong, notes = compared(limited, limited, (FLOATS,))
    assert wrong is None
    assert notes == {"forward": "in calls in which `clamp` never was above its upper limit"}


def test_a_method_that_overflows_is_to_blame_itself() -> None:
    def short(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x * 60000) * 2 / 60000

    def long(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    wrong, _ = compared(short, long, (FLOATS.half(),))
    assert wrong is not None
    assert wrong.overflows == "mul_1"
    assert "the exported method makes numbers that are not finite" in wrong.problem


def test_calls_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Any]] = []
    call = Runtime.call

    def noted(runtime: Runtime, method: str, leaves: Sequence[Any]) -> list[Any]:
        seen.append([*leaves])
        return call(runtime, method, leaves)

    monkeypatch.setattr(Runtime, "call", noted)
    right, _, inputs, sizes = FAULTS["the last row of a cache"]
    compared(right, right, inputs, sizes)
    first = [*seen]
    seen.clear()
    compared(right, right, inputs, sizes)
    assert len(first) == len(seen)
    assert all(torch.equal(*pair) for calls in zip(first, seen, strict=True) for pair in zip(*calls, strict=True))


def test_a_branch_that_writes_to_its_own_results_changes_no_buffer() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))
            self.register_buffer("constant", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            chosen = torch.cond(x.sum() > 0, lambda x: (x * 2).add_(1), lambda x: x - 1, (x,))
            return chosen + self.count + self.constant

    program = torch.export.export(Counting(), (torch.ones(4),))
    assert hints.states(program) == {"count"}


def test_a_weight_that_is_read_late_is_an_output() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.arange(3.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.table

    program = torch.export.export(Table(), (torch.ones(2),))
    (_, table), _ = Graph(program, {}, {"table": torch.arange(3.0)}).call([torch.ones(2)])
    assert table.tolist() == [0.0, 1.0, 2.0]


def test_samples_of_a_large_quantized_method_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    sample = compare._Sample

    def noted(graphs: Any, rounding: Any) -> Any:
        made.append(len(made))
        return sample(graphs, rounding)

    def rounded(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the operators

        steps = torch.ops.quantized_decomposed
        near = steps.quantize_per_tensor.default(net.a(x), 0.1, 0, -128, 127, torch.int8)
        return steps.dequantize_per_tensor.default(near, 0.1, 0, -128, 127, torch.int8).cumsum(1)

    def lifted(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return rounded(net, x) + 20

    monkeypatch.setattr(compare, "_Sample", noted)
    monkeypatch.setattr(compare, "_WORK_OF_SAMPLES", 1 << 60)
    assert compared(rounded, lifted, (FLOATS,))[0] is not None
    usual = len(made)
    made.clear()
    monkeypatch.setattr(compare, "_MUCH_WORK", 0)
    assert compared(rounded, lifted, (FLOATS,))[0] is not None
    assert len(made) == 4 < usual
