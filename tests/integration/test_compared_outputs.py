"""How `etbuild test` compares outputs: nothing in them may switch the comparison off."""

from __future__ import annotations

import math

import pytest
import torch

from etplugins.comparison import accuracy, layout, quantized
from etplugins.comparison.parts import Tolerance


@pytest.mark.parametrize("sentinel", [torch.finfo(torch.float32).min, -1e9, -1e5])
def test_a_sentinel_does_not_hide_wrong_elements(sentinel: float) -> None:
    right = torch.linspace(-3, 3, 63)
    wrong = accuracy.differences(
        [torch.cat((right * -7, torch.tensor([sentinel])))],
        [torch.cat((right, torch.tensor([sentinel])))],
        None,
        quantized=True,
    )
    assert wrong
    assert (
        accuracy.sqnr(torch.cat((right * 2, torch.tensor([sentinel]))), torch.cat((right, torch.tensor([sentinel]))))
        < 1
    )


def test_a_large_element_that_differs_is_no_sentinel() -> None:
    expected = torch.tensor([1.0, 2.0, -1e9])
    assert accuracy.differences([torch.tensor([1.0, 2.0, -2e9])], [expected], None, quantized=True)
    assert math.isinf(accuracy.sqnr(expected, expected))


@pytest.mark.parametrize("total", [1.0, 100.0])  # probabilities, and percentages
@pytest.mark.parametrize("quantized", [True, False])
def test_a_largest_element_that_is_right_is_no_sentinel(total: float, quantized: bool) -> None:
    expected = torch.tensor([total, 6.9e-18, 3e-12, 0.0])
    assert not accuracy.differences([torch.tensor([total, 7.4e-18, 5e-12, 0.0])], [expected], None, quantized)
    assert accuracy.differences([torch.tensor([total, 0.1 * total, 3e-12, 0.0])], [expected], None, quantized)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([2**53 + 1]), torch.tensor([2**53])),
        (torch.tensor([1 + 5j]), torch.tensor([1 + 0j])),
        (torch.tensor([True]), torch.tensor([False])),
    ],
)
def test_integers_and_complex_numbers_are_exact(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert accuracy.differences([actual], [expected], None, quantized=False)
    assert not accuracy.differences([expected], [expected], None, quantized=False)


def test_outputs_of_only_nan_compare_nothing() -> None:
    nan = torch.full((3,), math.nan)
    assert accuracy.differences([nan], [nan], None, quantized=False)
    assert not accuracy.differences([nan, torch.ones(1)], [nan, torch.ones(1)], None, quantized=False)


def test_where_zeros_are_expected_a_rounding_error_is_right() -> None:
    zeros = torch.zeros(3)
    assert not accuracy.differences([zeros + 1e-8], [zeros], None, quantized=False)
    assert accuracy.differences([zeros + 1e-4], [zeros], None, quantized=False)


def test_numbers_that_differ_look_different() -> None:
    expected = torch.tensor([1.0417, 0.5, -2.0])
    [said] = accuracy.differences([torch.nextafter(expected, expected * 2)], [expected], Tolerance(0, 0, 0), False)
    for line in said.splitlines()[1:4]:
        actual, _, wanted = line.partition(": ")[2].partition(" (allowed")[0].partition(" instead of ")
        assert actual != wanted
    assert "largest error 2.38e-07, SQNR 138" in said.splitlines()[4]


def test_a_quantization_that_clips_spoils_a_method_and_one_that_rounds_does_not() -> None:
    exact = torch.randn(64, generator=torch.Generator().manual_seed(0))
    near = quantized.loss([exact, torch.tensor(3)], [exact.mul(8).round() / 8, torch.tensor(3)])
    assert near is not None
    assert near > 20
    assert quantized.problem([near]) is None
    clipped = quantized.loss([exact], [exact.clamp(-0.1, 0.1)])
    assert clipped is not None
    assert "calibrate on real inputs" in str(quantized.problem([clipped]))
    outside = quantized.beyond([torch.arange(4), exact], [None, (-0.1, 0.1)])
    assert outside is not None
    assert outside.endswith("and its calibration from -0.1 to 0.1")
    assert f"In them, {outside}: calibrate on such inputs" in str(quantized.problem([clipped], outside))
    assert quantized.beyond([torch.arange(4), exact], [None, (-2.0, 2.0)]) is None
    assert quantized.loss([torch.tensor(3)], [torch.tensor(4)]) is None


def test_inputs_of_one_number_say_nothing_of_a_quantization() -> None:
    ids, zeros, image = torch.arange(4), torch.zeros(2, 3), torch.rand(2, 3)
    assert not quantized.says_something([zeros])
    assert not quantized.says_something([ids, zeros])
    assert quantized.says_something([zeros, image])
    assert quantized.says_something([ids])


def test_a_zero_point_that_is_off_by_one_is_no_rounding() -> None:
    step = 1 / 64
    expected = torch.linspace(-1, 1, 40).div(step).round() * step
    flips = torch.rand(8, 40, generator=torch.Generator().manual_seed(0))
    samples = [[expected + step * ((one < 0.05).float() - (one > 0.95).float())] for one in flips]
    assert not accuracy.unexplained(samples[0], [expected], samples[1:], None, True)
    assert accuracy.unexplained([expected + step], [expected], samples, None, True) == [0]


def test_the_order_in_memory_is_that_of_pytorch_or_that_of_the_dimensions() -> None:
    plain, last = torch.rand(1, 3, 4, 5), torch.rand(1, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    found = layout.wrong([last], [plain])
    assert found == ["the output: memory has its dimensions in the order [2, 3, 1] instead of [1, 2, 3]"]
    for right in ([plain], [last]):
        assert not layout.wrong(right, [last])
    assert not layout.wrong([plain[..., :1]], [last[..., :1].transpose(1, 2)])
    assert not layout.wrong([torch.rand(2, 1, 3).transpose(0, 1)], [torch.rand(1, 2, 3)])  # a size of one is anywhere
    assert not layout.wrong([None, 2, torch.rand(0, 2)], [None, 2, torch.rand(0, 2)])
