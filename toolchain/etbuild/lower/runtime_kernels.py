"""The operators that ExecuTorch's own runtime has kernels for."""

from __future__ import annotations

import functools
import warnings

import torch


@functools.cache
def listed() -> frozenset[str] | Exception:
    """The names of operators, as programs call them: `aten::add.out`. Or the reason why the installed package does not
    list them: it is another release, or has no runtime."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its API is experimental
        try:
            import executorch.kernels.quantized  # noqa: F401
            from executorch.extension.pybindings import portable_lib

            return frozenset(portable_lib._get_operator_names())
        except (ImportError, AttributeError) as error:
            return error


def aten_operators() -> list[torch._ops.OpOverload]:
    """The operators of PyTorch with a kernel, in the form that returns a new tensor: `aten.add.Tensor`.

    ExecuTorch refuses those outside of core ATen, such as `repeat_interleave`, even if there is a kernel.
    """
    names = listed()
    if isinstance(names, Exception):
        return []
    found = []
    for name in sorted(names):
        operator, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, operator, None) if name.startswith("aten::") else None
        form = overload.removesuffix("out").removesuffix("_") or "default"  # `add.out`, `mul.Scalar_out`
        if form in getattr(packet, "overloads", list)():
            found.append(getattr(packet, form))
    return found
