"""Lets linear layers with their own code, such as `input @ self.weight.T` in Falcon, call PyTorch's linear function.

torchao's weights work in `torch.nn.functional.linear` only.
"""

from __future__ import annotations

import copy
import functools
from contextlib import suppress

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.model.module import set_methods

_TRIAL_ROWS = 2  # rows in the inputs of a trial


def choose(module: torch.nn.Module) -> None:
    """Lets layers with quantized weights call `torch.nn.functional.linear`, where their own code computes the same.

    Args:
        module: The module. The classes of its layers are changed.
    """
    for layer in module.modules():
        kind = type(layer)
        has_own_code = isinstance(layer, torch.nn.Linear) and kind.forward is not torch.nn.Linear.forward
        if has_own_code and is_traceable_wrapper_subclass(layer.weight) and _computes_alike(layer):
            set_methods(layer, forward=torch.nn.Linear.forward)


def _computes_alike(layer: torch.nn.Linear) -> bool:
    """Whether a layer computes the same as a linear layer, in a trial with another weight. False for a layer with
    further tensors or children, which a checkpoint could change."""
    if any(layer._buffers) or any(layer._modules) or not {*layer._parameters} <= {"weight", "bias"}:
        return False
    with suppress(Exception), torch.random.fork_rng(), torch.no_grad():  # the layer's code may raise anything
        trial_layer = copy.copy(layer)  # a copy, to keep attributes such as a factor
        trial_layer._parameters = {
            **layer._parameters,
            "weight": torch.nn.Parameter(_weight(layer.out_features, layer.in_features)),
        }
        inputs = torch.randn(_TRIAL_ROWS, layer.in_features)
        bias = None if layer.bias is None else layer.bias.float()
        trial_layer._parameters["bias"] = None if bias is None else torch.nn.Parameter(bias)
        expected = torch.nn.functional.linear(inputs, trial_layer.weight, bias)
        return bool(torch.allclose(trial_layer(inputs), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())))
    return False


@functools.lru_cache(1)
def _weight(rows: int, columns: int) -> torch.Tensor:
    """Random numbers, float32 [rows, columns]. The cache helps because layers of one shape often follow each other."""
    return torch.randn(rows, columns)
