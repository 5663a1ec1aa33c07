"""What `etbuild inspect` proposes for operators that no backend took."""

from __future__ import annotations

import pytest

from etkit.inspection import advice


@pytest.mark.parametrize(
    ("operator", "why_not", "write"),
    [
        ("aten::mean.dim", "mean.dim only supports keepdim=True", "keepdim=True).flatten(1)"),
        ("aten::mm", "Expected weight to be a static param", "F.linear(x, weight)"),
        ("aten::add.Tensor", "Add node doesn't support alpha != 1", "`a + 2 * b`"),
        ("aten::sub.Tensor", "Sub node doesn't support alpha != 1", "`a + 2 * b`"),
        ("aten::avg_pool2d", "divisor override is not supported", "`divisor_override`"),
        ("aten::_softmax", "dim must be the last dim, got dim = 1 for tensor of rank 3", "softmax(-1)"),
        ("aten::pow.Tensor_Scalar", "only support power == 2, got 3.0", "`x * x * x`"),
        ("aten::embedding", "XnnpackBackend has no rule for it", "looks rows up"),
    ],
)
def test_advice_is_in_the_words_of_pytorch(operator: str, why_not: str, write: str) -> None:
    said = advice.of(operator, why_not)
    assert said is not None
    assert write in said


def test_what_is_not_known_has_none() -> None:
    assert advice.of("aten::sort", "XnnpackBackend has no rule for it") is None
    assert advice.of("aten::mean.dim", "mean.dim does not support dtype") is None
