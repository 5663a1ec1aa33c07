"""Operators of complex tensors in real numbers.

PyTorch's `ComplexTensor` has most of them. This module has those that it lacks, and those for which ExecuTorch has no
kernel: `hypot`, complex numbers of Python, and Fourier transforms.

Limit: `complex-operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.complex_tensor._ops.common import COMPLEX_TO_REAL, lookup_complex
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from etplugins.upstream.fourier import Transforms

_aten = torch.ops.aten
_LONGEST_POWER = 8
"""The largest exponent that is written as a product."""


class Unsupported(Exception):
    """An operator has no form in real numbers here. Users see the message."""


def parts(value: Any) -> tuple[Any, Any]:
    """The real and the imaginary part of a tensor or a number; None for the imaginary part of a real one."""
    if isinstance(value, ComplexTensor):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    if isinstance(value, torch.Tensor) and value.is_complex():
        raise Unsupported("reads a complex tensor that the graph does not compute")
    return value, None


def _together(real: torch.Tensor, imag: Any) -> torch.Tensor:
    """A complex tensor; a real one if there is no imaginary part. The parts get one shape and one dtype."""
    if imag is None:
        return real
    if not isinstance(imag, torch.Tensor):
        return ComplexTensor(real, torch.full_like(real, imag))
    shape, dtype = torch.broadcast_shapes(real.shape, imag.shape), torch.promote_types(real.dtype, imag.dtype)
    return ComplexTensor(*(part.expand(shape).to(dtype) for part in (real, imag)))


def _add(one: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    if isinstance(alpha, complex):
        other, alpha = _mul(other, alpha), 1
    (real, imag), (other_real, other_imag) = parts(one), parts(other)
    if alpha != 1:
        other_real = other_real * alpha
        other_imag = None if other_imag is None else other_imag * alpha
    if imag is None:
        return _together(_float(real) + other_real, other_imag)
    return _together(real + other_real, imag if other_imag is None else imag + other_imag)


def _sub(one: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    return _add(one, other, alpha=-alpha)


def _rsub(one: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    return _add(other, one, alpha=-alpha)


def _mul(one: Any, other: Any) -> torch.Tensor:
    (real, imag), (other_real, other_imag) = parts(one), parts(other)
    if imag is None and other_imag is None:
        return real * other_real
    if other_imag is None:
        return _together(real * other_real, imag * other_real)
    if imag is None:
        return _together(real * other_real, real * other_imag)
    return _together(real * other_real - imag * other_imag, real * other_imag + imag * other_real)


def _div(one: Any, other: Any, *, rounding_mode: str | None = None) -> torch.Tensor:
    if rounding_mode is not None:
        raise Unsupported("rounds a quotient")
    (real, imag), (other_real, other_imag) = parts(one), parts(other)
    if other_imag is None:
        return _together(real / other_real, imag / other_real)
    if isinstance(other, complex):
        return _mul(one, 1 / other)
    larger = torch.maximum(other_real.abs(), other_imag.abs())  # squares of very large or small parts are no numbers
    other_real, other_imag = other_real / larger, other_imag / larger
    size = other_real * other_real + other_imag * other_imag
    other_real, other_imag = other_real / size, other_imag / size
    if imag is None:
        return _together(real * other_real / larger, -(real * other_imag) / larger)
    return _together((real * other_real + imag * other_imag) / larger, (imag * other_real - real * other_imag) / larger)


def _reciprocal(number: Any) -> torch.Tensor:
    return _div(1.0, number)


def _abs(number: ComplexTensor) -> torch.Tensor:
    return (number.re * number.re + number.im * number.im).sqrt()


def _pow(base: Any, exponent: Any) -> torch.Tensor:
    if isinstance(base, ComplexTensor) and isinstance(exponent, int | float | complex) and exponent == 0:
        return ComplexTensor(torch.ones_like(base.re), torch.zeros_like(base.im))
    if isinstance(exponent, int | float) and exponent == int(exponent) and 0 < exponent <= _LONGEST_POWER:
        result = base
        for _ in range(int(exponent) - 1):
            result = _mul(result, base)
        return result
    if not isinstance(base, ComplexTensor):
        raise Unsupported("raises real numbers to complex exponents")
    return torch.exp(_mul(torch.log(base), exponent))


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return ComplexTensor(size * angle.cos(), size * angle.sin())


def _view_as_complex(pairs: torch.Tensor) -> torch.Tensor:
    return ComplexTensor(pairs.select(-1, 0), pairs.select(-1, 1))


def _float(value: Any) -> Any:
    """A tensor of integers or booleans as floats: complex numbers are floats."""
    is_exact = isinstance(value, torch.Tensor) and not value.is_floating_point()
    return value.to(torch.get_default_dtype()) if is_exact else value


def _converted(tensor: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    real, imag = parts(tensor)
    options.pop("memory_format", None)
    target = COMPLEX_TO_REAL.get(dtype, dtype) if dtype is not None else real.dtype
    converted = _aten._to_copy(real, dtype=target, **options)
    if dtype is not None and not dtype.is_complex:
        return converted
    imag = torch.zeros_like(converted) if imag is None else _aten._to_copy(imag, dtype=target, **options)
    return ComplexTensor(converted, imag)


def _of_parts(operator: Any) -> Callable[..., Any]:
    """An operator that moves elements: it does the same with the real and with the imaginary parts."""

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in leaves):
            raise Unsupported("puts real numbers into a complex tensor")
        results = [
            operator(
                *pytree.tree_map(lambda each, index=index: _part(each, index), args),
                **pytree.tree_map(lambda each, index=index: _part(each, index), kwargs),
            )
            for index in range(2)
        ]
        return ComplexTensor(*results)

    return call


def _part(value: Any, index: int) -> Any:
    return parts(value)[index] if isinstance(value, ComplexTensor | complex) else value


_FACTORIES = frozenset(
    (
        *(_aten.full, _aten.zeros, _aten.ones, _aten.empty, _aten.scalar_tensor, _aten.new_zeros, _aten.new_full),
        *(_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.empty_like),
    )
)


def _made(operator: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """A new complex tensor, by an operator that gets the dtype."""
    options = {**kwargs, "dtype": COMPLEX_TO_REAL[kwargs["dtype"]]}
    options.pop("memory_format", None)
    real = operator(*pytree.tree_map(lambda each: parts(each)[0], args), **options)
    numbers = [each.imag for each in args if isinstance(each, complex)]
    return ComplexTensor(real, torch.full_like(real, numbers[0] if numbers else 0.0))


_MOVING = (
    *(_aten.index_put, _aten.lift_fresh_copy, _aten.roll, _aten.unfold),
    *(_aten.reflection_pad1d, _aten.reflection_pad2d, _aten.replication_pad1d, _aten.replication_pad2d),
)

_TABLE: dict[Any, Callable[..., Any]] = {
    _aten.abs: _abs,
    _aten.add: _add,
    _aten.div: _div,
    _aten.mul: _mul,
    _aten.pow: _pow,
    _aten.reciprocal: _reciprocal,
    _aten.rsub: _rsub,
    _aten.sub: _sub,
    _aten._to_copy: _converted,
    **{operator: _of_parts(operator) for operator in _MOVING},
}
"""Operators of complex tensors."""
_MAKERS: dict[Any, Callable[..., Any]] = {
    _aten.complex: ComplexTensor,
    _aten.polar: _polar,
    _aten.view_as_complex: _view_as_complex,
}
"""Operators of real tensors with a complex result."""


class InRealNumbers(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Computes operators of complex tensors in real numbers. A complex tensor is a `ComplexTensor`."""

    def __init__(self, transforms: Transforms) -> None:
        super().__init__()
        self._transforms = {
            _aten._fft_c2c: lambda tensor, *rest: ComplexTensor(*transforms.of_complex(_both(tensor), *rest)),
            _aten._fft_r2c: lambda tensor, *rest: ComplexTensor(*transforms.of_real(tensor, *rest)),
            _aten._fft_c2r: lambda tensor, *rest: transforms.to_real(_both(tensor), *rest),
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func.overloadpacket
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        made = next((each for each in leaves if isinstance(each, torch.dtype) and each.is_complex), None)
        if made is None and packet is _aten.ones_like and isinstance(args[0], ComplexTensor):
            made = args[0].dtype if kwargs.get("dtype") is None else None
            kwargs = {**kwargs, "dtype": made or kwargs.get("dtype")}
        function = self._transforms.get(packet) or _MAKERS.get(packet)
        if function is None and made is not None and packet in _FACTORIES:
            return self._called(_made, packet, args, kwargs)
        if made is not None and not any(isinstance(each, torch.Tensor) for each in leaves):
            made = None  # a function of dtypes
        if function is None and (made is not None or any(isinstance(each, ComplexTensor | complex) for each in leaves)):
            function = _TABLE.get(packet) or lookup_complex(func)
            if function is None:
                raise Unsupported(f"needs `{func}`, which is not known for complex tensors")
        if function is None:
            return func(*args, **kwargs)
        return self._called(function, *args, **kwargs)

    def _called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function whose own operators come here too."""
        with self:
            return function(*args, **kwargs)


def _both(tensor: Any) -> tuple[torch.Tensor, torch.Tensor]:
    real, imag = parts(tensor)
    return real, torch.zeros_like(real) if imag is None else imag
