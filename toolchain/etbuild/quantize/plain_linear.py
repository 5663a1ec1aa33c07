"""Linear layers that compute with their weight in code of their own, such as `input @ self.weight.T` in Falcon.

torchao's weights take part in `torch.nn.functional.linear` only.
"""

from __future__ import annotations

import copy
import functools
from contextlib import suppress

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.model.module import set_methods

_ROWS = 2  # of the inputs that are tried


def choose(module: torch.nn.Module) -> None:
    """Lets layers with quantized weights call `torch.nn.functional.linear`, where their own code computes the same.

    Args:
        module: The module. The classes of its layers are changed.
    """
    for layer in module.modules():
        kind = type(layer)
        own = isinstance(layer, torch.nn.Linear) and kind.forward is not torch.nn.Linear.forward
        if own and is_traceable_wrapper_subclass(layer.weight) and _computes_alike(layer):
            set_methods(layer, forward=torch.nn.Linear.forward)


def _computes_alike(layer: torch.nn.Linear) -> bool:
    """Whether a layer computes what a linear layer does: it has nothing else that a checkpoint could change, and it is
    tried with another weight."""
    if any(layer._buffers) or any(layer._modules) or not {*layer._parameters} <= {"weight", "bias"}:
        return False
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # it is code of others
        tried = copy.copy(layer)  # with its own attributes, such as a factor
        tried._parameters = {
            **layer._parameters,
            "weight": torch.nn.Parameter(_weight(layer.out_features, layer.in_features)),
        }
        inputs = torch.randn(_ROWS, layer.in_features)
        bias = None if layer.bias is None else layer.bias.float()
        tried._parameters["bias"] = None if bias is None else torch.nn.Parameter(bias)
        expected = torch.nn.functional.linear(inputs, tried.weight, bias)
        return bool(torch.allclose(tried(inputs), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())))
    return False


@functools.lru_cache(1)
def _weight(rows: int, columns: int) -> torch.Tensor:
    """Random numbers, float32 [rows, columns]. Layers of one shape often follow each other."""
    return torch.randn(rows, columns)
