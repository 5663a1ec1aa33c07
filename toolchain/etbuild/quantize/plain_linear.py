"""Linear layers that compute with their weight in code of their own, such as `input @ self.weight.T` in Falcon.

torchao's weights take part in `torch.nn.functional.linear` only.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_TRIED = (4, 3)  # inputs and outputs


def choose(module: torch.nn.Module) -> None:
    """Lets layers with quantized weights call `torch.nn.functional.linear`, where their own code computes the same.

    Args:
        module: The module. The classes of its layers are changed.
    """
    for layer in module.modules():
        kind = type(layer)
        own = isinstance(layer, torch.nn.Linear) and kind.forward is not torch.nn.Linear.forward
        if own and is_traceable_wrapper_subclass(layer.weight) and _computes_alike(kind):
            names = {"forward": torch.nn.Linear.forward, "__module__": kind.__module__}
            layer.__class__ = type(kind.__name__, (kind,), names)


def _computes_alike(kind: type[torch.nn.Linear]) -> bool:
    """Whether a small layer of a class computes what a linear layer does. False if it is not made by two sizes."""
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # it is code of others
        tried, inputs = kind(*_TRIED).float(), torch.randn(2, _TRIED[0])
        return bool(torch.allclose(tried(inputs), torch.nn.Linear.forward(tried, inputs), rtol=1e-4, atol=1e-5))
    return False
