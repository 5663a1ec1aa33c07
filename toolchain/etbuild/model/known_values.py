"""Computes when a method is exported what follows from the sizes of its inputs and not from their values.

A tower for images makes indices, masks and lengths of the size of an image, in loops and with lists. Traced, these
values are unknown, and a program cannot have lists of unknown lengths. An image of a method has one size, so that they
can be computed at once: they become constants of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_COUNTING = (torch.int64, torch.int32, torch.bool)
"""Tensors of these dtypes that are made of no other tensors hold sizes or places. A model writes traced values to
others, such as an empty tensor for its results."""


class KnownValues(TorchFunctionMode):  # type: ignore[misc]  # torch has no types
    """Within this context, functions whose tensors are all known are computed and not traced.

    A tensor is known if it is made of numbers, and if it is computed from known tensors. Inputs, parameters and buffers
    of a module that is exported are not. Without an export, everything is computed anyway.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        # A traced tensor is of a class of its own.
        if any(type(tensor) is not torch.Tensor for tensor in tensors) or any(
            isinstance(leaf, torch.SymInt) for leaf in leaves
        ):
            return func(*args, **kwargs)
        if not tensors:
            made = _places(func, args, kwargs)
            return func(*args, **kwargs) if made is None else made
        with _disable_current_modes():
            return func(*args, **kwargs)


def _places(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor of sizes or places that a function makes that takes no tensors. None if it makes something else, or
    draws random numbers."""
    with _disable_current_modes():
        before = torch.get_rng_state()
        try:
            made = func(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the caller calls it again
            made = None
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            return None
    return made if isinstance(made, torch.Tensor) and made.dtype in _COUNTING else None
