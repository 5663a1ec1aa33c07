"""Makes random tensors that fit where an example fits. The same generator makes the same tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Limits = tuple[float, float]
"""The smallest and the largest number."""


def like(
    example: torch.Tensor,
    shape: Sequence[int],
    limits: Limits | None,
    generator: torch.Generator,
) -> torch.Tensor:
    """A random tensor with the dtype of an example.

    Without limits, floating-point numbers are normally distributed, and integers are taken from the example: others may
    not be valid tokens or positions. A mask, which has infinities, also takes its numbers from the example.

    Args:
        example: The example.
        shape: The shape of the new tensor.
        limits: The range of its numbers.
        generator: Where random numbers come from.
    """
    if example.is_floating_point():
        return _float(example, shape, limits, generator).to(example.dtype)
    if limits is not None:
        return torch.randint(int(limits[0]), int(limits[1]) + 1, tuple(shape), generator=generator).to(example.dtype)
    if example.dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    own = example.flatten()
    if example.dim() == 1 and own.numel() > 1 and bool((own.diff() == 1).all()):  # positions stay positions
        return torch.arange(int(own[0]), int(own[0]) + shape[0], dtype=example.dtype)
    return _of_example(own, shape, generator)


def _float(
    example: torch.Tensor, shape: Sequence[int], limits: Limits | None, generator: torch.Generator
) -> torch.Tensor:
    if limits is not None:
        return limits[0] + (limits[1] - limits[0]) * torch.rand(tuple(shape), generator=generator)
    if not bool(example.isfinite().all()):
        return _of_example(example.flatten(), shape, generator)
    return torch.randn(tuple(shape), generator=generator)


def _of_example(own: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    if not own.numel():
        return own.new_zeros(tuple(shape))
    return own[torch.randint(0, own.numel(), tuple(shape), generator=generator)]
