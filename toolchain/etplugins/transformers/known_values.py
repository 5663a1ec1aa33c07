"""Computes values that depend only on the sizes of inputs when a method is exported.

A tower for images makes indices, masks and lengths from the size of an image, in loops and with lists. Traced, these
values are unknown, and a program cannot have lists of unknown lengths. A method takes images of one size, so that the
values can be computed in the export: they become constants of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_COUNTING_DTYPES = (torch.int64, torch.int32, torch.bool)
"""The dtypes of counts, indices and masks. Tensors of these dtypes that are made of no other tensors
are known. A tensor of another dtype may be empty until a model writes traced values to it."""


class KnownValues(TorchFunctionMode):  # type: ignore[misc]  # torch has no types
    """Within this context, functions whose tensors are all known are computed and not traced.

    A tensor is known if it is made of numbers, or computed from known tensors. Inputs, parameters and buffers of an
    exported module are not known. Without an export, everything is computed anyway.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, traced or not."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        # A traced tensor has another class.
        if any(type(tensor) is not torch.Tensor for tensor in tensors) or any(
            isinstance(leaf, torch.SymInt) for leaf in leaves
        ):
            return func(*args, **kwargs)
        if not tensors:
            constant = _counts_or_indices(func, args, kwargs)
            return func(*args, **kwargs) if constant is None else constant
        with _disable_current_modes():
            return func(*args, **kwargs)


def _counts_or_indices(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """The tensor of counts, indices or a mask that a function makes without tensors. None if the function makes
    something else, or draws random numbers."""
    with _disable_current_modes():
        before = torch.get_rng_state()
        try:
            result = func(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the caller calls it again, and gets the error
            result = None
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            return None
    return result if isinstance(result, torch.Tensor) and result.dtype in _COUNTING_DTYPES else None
