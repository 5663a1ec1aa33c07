"""Pairs of real tensors compute what complex tensors compute, and other uses of them are errors."""

from __future__ import annotations

import pytest
import torch

from etbuild.errors import BuildError
from etplugins.transformers.complex_pairs import as_pairs

QUERIES = torch.randn(2, 5, 4, 2, generator=torch.Generator().manual_seed(0))
ANGLES = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def rotated(factors: torch.Tensor) -> torch.Tensor:
    """The queries, turned by complex numbers."""
    return torch.view_as_real(torch.view_as_complex(QUERIES) * factors.unsqueeze(0))


def test_a_rotation_by_numbers_that_are_made_in_the_call() -> None:
    expected = rotated(torch.polar(torch.ones_like(ANGLES), ANGLES))
    with as_pairs():
        found = rotated(torch.polar(torch.ones_like(ANGLES), ANGLES))
    torch.testing.assert_close(found, expected)


def test_a_rotation_by_a_complex_tensor() -> None:
    """It may be a buffer of the model, or be made before."""
    factors = torch.polar(torch.ones_like(ANGLES), ANGLES)
    with as_pairs():
        found = rotated(factors)
    torch.testing.assert_close(found, rotated(factors))


@pytest.mark.parametrize("factor", [3, 0.5, 2 - 1j, torch.tensor(2.0)], ids=str)
def test_a_product_with_a_number(factor: complex) -> None:
    expected = torch.view_as_real(torch.view_as_complex(QUERIES) * factor)
    with as_pairs():
        found = torch.view_as_real(torch.view_as_complex(QUERIES) * factor)
    torch.testing.assert_close(found, expected)


def test_another_use_is_an_error() -> None:
    with as_pairs(), pytest.raises(BuildError, match="the model computes with complex numbers, and uses `abs` of them"):
        torch.view_as_complex(QUERIES).abs()
