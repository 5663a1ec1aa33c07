"""Computes with complex numbers as pairs of real ones: ExecuTorch has no kernels for complex tensors.

Some models rotate queries and keys by complex numbers: they make them with `torch.polar`, multiply, and convert the
products with `torch.view_as_real`. Any other use of a pair fails, because a pair is not a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.errors import BuildError
from etbuild.patching import replaced


@dataclass(frozen=True)
class Pair:
    """A complex tensor.

    Attributes:
        real: The real part, a tensor of floats.
        imag: The imaginary part, with the same shape and dtype.
    """

    real: torch.Tensor
    imag: torch.Tensor

    def __mul__(self, factor: Any) -> Pair:
        """The product with a pair, a number or a tensor."""
        if isinstance(factor, torch.Tensor) and factor.is_complex():
            factor = Pair(factor.real, factor.imag)
        if isinstance(factor, complex):
            factor = Pair(*(torch.full_like(self.real, part) for part in (factor.real, factor.imag)))
        if isinstance(factor, Pair):
            real = self.real * factor.real - self.imag * factor.imag
            return Pair(real, self.real * factor.imag + self.imag * factor.real)
        return Pair(self.real * factor, self.imag * factor)

    __rmul__ = __mul__

    def __getattr__(self, name: str) -> Any:
        """Raises BuildError for attributes of complex tensors that a pair lacks."""
        if name.startswith("__"):
            raise AttributeError(name)
        message = f"the model computes with complex numbers, and uses `{name}` of them"
        raise BuildError.of(message, "ExecuTorch has no kernels for complex tensors: compute with their real parts")

    def __getitem__(self, index: Any) -> Pair:
        return Pair(self.real[index], self.imag[index])

    @property
    def device(self) -> torch.device:
        """The device of both parts."""
        return self.real.device

    def unsqueeze(self, dim: int) -> Pair:
        """A pair with another dimension of size 1."""
        return Pair(self.real.unsqueeze(dim), self.imag.unsqueeze(dim))

    def to(self, device: torch.device) -> Pair:
        """The pair on a device."""
        return Pair(self.real.to(device), self.imag.to(device))


def _polar(size: torch.Tensor, angle: torch.Tensor) -> Pair:
    return Pair(size * angle.cos(), size * angle.sin())


def _view_as_complex(pairs: torch.Tensor) -> Pair:
    return Pair(pairs[..., 0], pairs[..., 1])


def _view_as_real(number: Pair) -> torch.Tensor:
    return torch.stack([number.real, number.imag], dim=-1)


@contextmanager
def as_pairs() -> Iterator[None]:
    """Lets PyTorch's functions that make complex tensors make pairs within this context."""
    replacements = {"polar": _polar, "view_as_complex": _view_as_complex, "view_as_real": _view_as_real}
    with ExitStack() as stack:
        for name, function in replacements.items():
            stack.enter_context(replaced(torch, name, function))
        yield
