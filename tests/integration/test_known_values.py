"""What follows from sizes is computed when a method is exported, and what follows from values is traced."""

from __future__ import annotations

import contextlib

import torch

from etplugins.transformers.known_values import KnownValues


class Windows(torch.nn.Module):
    """Cuts its input at places that it computes of its length, as towers for images do."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.context = KnownValues if known else contextlib.nullcontext
        self.register_buffer("factors", torch.arange(2.0, 8.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self.context():
            places = torch.arange(x.shape[0])
            even = places[(places % 2 == 0).nonzero()[:, 0]]
            lengths = torch.tensor([[1, 2], [0, 3]]).sum(1).tolist()
            first, second = (x * self.factors).split(lengths)
            result = torch.empty(x.shape[0])
            result[even] = second * (even + 1)
            result[even + 1] = first
            return result, x[even].cumsum(0)


def depend_on_values(program: torch.export.ExportedProgram) -> bool:
    """Whether a graph has sizes that follow from values."""
    return any(str(node.target).startswith(("aten.item", "aten.nonzero")) for node in program.graph.nodes)


def test_random_numbers_are_no_known_values() -> None:
    torch.manual_seed(0)
    expected = torch.randint(9, (4,))
    torch.manual_seed(0)
    with KnownValues():
        assert torch.equal(torch.randint(9, (4,)), expected)

    class Draws(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with KnownValues():
                return x + torch.randint(9, (4,))

    program = torch.export.export(Draws(), (torch.zeros(4),))
    assert any("randint" in str(node.target) for node in program.graph.nodes)


def test_what_follows_from_a_size_is_a_constant() -> None:
    x = torch.arange(6.0)
    traced, known = (torch.export.export(Windows(known), (x,)) for known in (False, True))
    assert depend_on_values(traced)
    assert not depend_on_values(known)
    for given in (x, 3 * x):
        expected = Windows(known=False)(given)
        torch.testing.assert_close(known.module()(given), expected)
        torch.testing.assert_close(Windows(known=True)(given), expected)
