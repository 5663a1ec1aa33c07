"""Fourier transforms of fixed sizes as products of matrices with real numbers.

A transform of n points is a product with a matrix of n rows. If it would be large, n is divided into two factors: then
shorter transforms and a product of elements compute the same from less numbers (the algorithm of Cooley and Tukey).
The numbers of a matrix are computed in float64, and rounded once.

Limit: `fourier`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

LARGEST = 512
"""The largest size whose transform is one product, if the size can be divided."""
_MOST = 4096
"""The largest size that cannot be divided: its matrix has 134 MB in float32."""

_ZERO = 1e-15
"""Below it, a cosine or sine is 0 for exact angles: the next ones are far larger."""

Parts = tuple[torch.Tensor, torch.Tensor]
"""A real and an imaginary part."""
Constant = Callable[[str, Callable[[], torch.Tensor]], torch.Tensor]
"""Gets a name and a function that makes a tensor. Returns the tensor for a computation in the graph."""


class CannotTransform(Exception):
    """A transform has no form in real numbers here. Users see the message."""


@dataclass
class Transforms:
    """Computes transforms, and counts what they cost.

    Attributes:
        constant: Makes constants of the program.
        sizes: The numbers of points that were transformed.
        multiplications: How many multiplications a call with the sizes of the example has.
    """

    constant: Constant
    sizes: list[int] = field(default_factory=list)
    multiplications: int = 0

    def of_complex(self, number: Parts, dims: Sequence[int], normalization: int, forward: bool) -> Parts:
        """The transform of complex numbers, as `aten._fft_c2c` computes it."""
        for dim in dims:
            size = _size(number[0], dim)
            scale = _scale(size, normalization)
            real, imag = (part.movedim(dim, -1) for part in number)
            real, imag = self._transformed(real, imag, size, size, -1 if forward else 1, scale)
            number = real.movedim(-1, dim), imag.movedim(-1, dim)
            self.sizes.append(size)
        return number

    def of_real(self, tensor: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Parts:
        """The transform of real numbers, as `aten._fft_r2c` computes it: of the last dimension first."""
        *others, last = dims
        size = _size(tensor, last)
        wanted = size // 2 + 1 if onesided else size
        moved = tensor.movedim(last, -1)
        real, imag = self._transformed(moved, None, size, wanted, -1, _scale(size, normalization))
        self.sizes.append(size)
        return self.of_complex((real.movedim(-1, last), imag.movedim(-1, last)), others, normalization, True)

    def to_real(self, number: Parts, dims: Sequence[int], normalization: int, size: int) -> torch.Tensor:
        """The inverse transform to real numbers, as `aten._fft_c2r` computes it: of the last dimension last."""
        *others, last = dims
        real, imag = (part.movedim(last, -1) for part in self.of_complex(number, others, normalization, False))
        if not isinstance(size, int):
            raise CannotTransform("has a dynamic size")
        self.sizes.append(size)
        return self._real_inverse(real, imag, size, _scale(size, normalization)).movedim(-1, last)

    def _real_inverse(self, real: torch.Tensor, imag: torch.Tensor, size: int, scale: float) -> torch.Tensor:
        if _factors(size) is None:
            return self._product(torch.cat([real, imag], -1), _Matrix("half", size, size // 2 + 1, 1, scale))
        mirrored = slice(1, (size + 1) // 2)
        real = torch.cat([real, real[..., mirrored].flip(-1)], -1)
        imag = torch.cat([imag, -imag[..., mirrored].flip(-1)], -1)
        return self._transformed(real, imag, size, size, 1, scale)[0]

    def _transformed(
        self, real: torch.Tensor, imag: torch.Tensor | None, size: int, wanted: int, sign: int, scale: float
    ) -> Parts:
        """The first wanted numbers of the transform of the last dimension."""
        factors = _factors(size)
        if factors is None:
            return self._whole(real, imag, size, wanted, sign, scale)
        outer, inner = factors
        shape = real.shape[:-1]
        parts = [None if part is None else part.unflatten(-1, (outer, inner)).mT for part in (real, imag)]
        assert parts[0] is not None
        real, imag = self._transformed(parts[0], parts[1], outer, outer, sign, scale)
        cos, sin = (
            self.constant(
                f"fourier_{kind}_{inner}_{outer}_{'inverse_' if sign > 0 else ''}{_name(real.dtype)}",
                lambda kind=kind: _twiddle(kind, inner, outer, sign).to(real.dtype),  # type: ignore[misc]
            )
            for kind in ("cos", "sin")
        )
        self.multiplications += 4 * _number(real)
        real, imag = real * cos - imag * sin, real * sin + imag * cos
        real, imag = self._transformed(real.mT, imag.mT, inner, inner, sign, 1.0)
        real, imag = (part.mT.reshape(*shape, size) for part in (real, imag))
        return (real, imag) if wanted == size else (real[..., :wanted], imag[..., :wanted])

    def _whole(
        self, real: torch.Tensor, imag: torch.Tensor | None, size: int, wanted: int, sign: int, scale: float
    ) -> Parts:
        matrix = _Matrix("whole", size, wanted, sign, scale)
        if imag is None:
            product = self._product(real, matrix)
            return product[..., :wanted], product[..., wanted:]
        of_real, of_imag = self._product(torch.stack([real, imag]), matrix).unbind()
        return of_real[..., :wanted] - of_imag[..., wanted:], of_real[..., wanted:] + of_imag[..., :wanted]

    def _product(self, tensor: torch.Tensor, matrix: _Matrix) -> torch.Tensor:
        content = self.constant(matrix.name(tensor.dtype), lambda: matrix.made().to(tensor.dtype))
        self.multiplications += _number(tensor) * content.shape[1]
        return tensor @ content


@dataclass(frozen=True)
class _Matrix:
    """A matrix that makes a transform.

    Attributes:
        kind: `whole`: the products with cosines, and beside them those with sines. `half`: the product with real parts
            and then imaginary parts of half a spectrum is real.
        size: The number of points.
        wanted: The number of frequencies.
        sign: That of the exponent.
        scale: A factor.
    """

    kind: str
    size: int
    wanted: int
    sign: int
    scale: float

    def name(self, dtype: torch.dtype) -> str:
        """The name of the constant: other matrices have other names."""
        known = {1.0: "", 1 / self.size: "_by_n", 1 / math.sqrt(self.size): "_by_root_n"}
        scaled = known.get(self.scale)
        if scaled is None:  # that of a size whose factor this is
            scaled = f"_times_{self.scale.hex()}".replace(".", "_").replace("-", "_")
        inverse = "_inverse" if self.sign > 0 else ""
        return f"fourier_{self.kind}_{self.size}_{self.wanted}{inverse}{scaled}_{_name(dtype)}"

    def made(self) -> torch.Tensor:
        """The matrix in float64."""
        cos, sin = _circle(self.size, self.wanted, self.size)
        if self.kind == "whole":
            return torch.cat([cos, sin * self.sign], 1) * self.scale
        twice = torch.full((self.wanted, 1), 2.0, dtype=torch.float64)
        twice[0] = 1
        if self.size % 2 == 0:
            twice[-1] = 1
        return torch.cat([cos.T * twice, -sin.T * twice]) * self.scale


def _circle(rows: int, columns: int, points: int) -> Parts:
    """The cosines and sines of row times column, where `points` are once around."""
    positions = torch.outer(torch.arange(rows), torch.arange(columns)) % points  # integers: nothing is rounded
    angles = positions.double() * (2 * math.pi / points)
    cos, sin = (torch.where(part.abs() < _ZERO, 0.0, part) for part in (angles.cos(), angles.sin()))
    return cos, sin


def _twiddle(kind: str, inner: int, outer: int, sign: int) -> torch.Tensor:
    cos, sin = _circle(inner, outer, inner * outer)
    return cos if kind == "cos" else sin * sign


def _factors(size: int) -> tuple[int, int] | None:
    """Two factors of a large size, as equal as can be; None if its transform is one product.

    Raises:
        CannotTransform: The size is too large, and has no factors.
    """
    if size <= LARGEST:
        return None
    factor = next((each for each in range(math.isqrt(size), 1, -1) if size % each == 0), None)
    if factor is not None:
        return factor, size // factor
    if size > _MOST:
        raise CannotTransform(f"has {size} points, a number that is too large and has no factors: choose a power of 2")
    return None


def _scale(size: int, normalization: int) -> float:
    """The factor of a normalization: none, by the root of the size, or by the size."""
    return (1.0, 1 / math.sqrt(size), 1 / size)[normalization]


def _size(tensor: torch.Tensor, dim: int) -> int:
    size = tensor.shape[dim]
    if not isinstance(size, int):
        raise CannotTransform("has a dynamic size")
    return size


def _number(tensor: torch.Tensor) -> int:
    """The number of elements, with the sizes of the example."""
    return math.prod(size if isinstance(size, int) else int(size.node.hint or 1) for size in tensor.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shown(number: Any) -> str:
    """A number of bytes or multiplications for people, such as `642 k`."""
    for factor, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number} "
