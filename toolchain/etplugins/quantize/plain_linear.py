"""Finds layers that compute what PyTorch's linear function computes, and lets them call it.

torchao's weights work in `torch.nn.functional.linear` only. Some linear layers have their own code, such as `input @
self.weight.T` in Falcon. Others are of another class, such as GPT-2's `Conv1D`, whose weight is [inputs, outputs]. No
list says which: a trial with random numbers does.
"""

from __future__ import annotations

import copy
import functools
import weakref
from contextlib import suppress

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.model.module import set_methods

TURNED_FROM = "_etbuild_turned_from"
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.03}
_SHAPES = ((2,), (2, 3))  # of the inputs of trials, without the last dimension
_turned: weakref.WeakKeyDictionary[torch.nn.Module, bool | None] = weakref.WeakKeyDictionary()


def choose(module: torch.nn.Module) -> None:
    """Lets layers with quantized weights call `torch.nn.functional.linear`, where their own code computes the same.

    Args:
        module: The module. The classes of its layers are changed.
    """
    for layer in module.modules():
        kind = type(layer)
        has_own_code = isinstance(layer, torch.nn.Linear) and kind.forward is not torch.nn.Linear.forward
        if (
            has_own_code
            and is_traceable_wrapper_subclass(layer.weight)
            and _computes_alike(layer, False, torch.float32)
        ):
            set_methods(layer, forward=torch.nn.Linear.forward)


def is_turned(layer: torch.nn.Module) -> bool | None:
    """How a layer of another class than `torch.nn.Linear` holds the weight of a linear layer.

    Returns:
        Whether the weight is [inputs, outputs], and not [outputs, inputs]; None if the layer computes something else,
        or computes it in float32 for weights of 16 bits: it needs the digits.
    """
    if layer not in _turned:
        weight = layer._parameters.get("weight")
        may_be = weight is not None and weight.dim() == 2 and not isinstance(layer, torch.nn.Linear)
        forms = (False, True) if may_be else ()
        _turned[layer] = next((each for each in forms if _computes_alike(layer, each, *_TOLERANCES)), None)
    return _turned[layer]


def become(layer: torch.nn.Module) -> None:
    """Makes a layer, for which `is_turned` is not None, a `torch.nn.Linear` with a weight [outputs, inputs].

    A weight that was turned has the original one in its attribute `TURNED_FROM`.
    """
    kind, weight = type(layer), layer._parameters["weight"]
    assert weight is not None
    if is_turned(layer):
        turned: torch.nn.Parameter = torch.nn.Parameter(weight.detach().t().contiguous(), requires_grad=False)
        setattr(turned, TURNED_FROM, weight)
        layer._parameters["weight"] = weight = turned
    layer._parameters.setdefault("bias", None)
    vars(layer).update(out_features=weight.shape[0], in_features=weight.shape[1])
    methods = {"forward": torch.nn.Linear.forward, "__module__": kind.__module__}
    layer.__class__ = type(kind.__name__, (kind, torch.nn.Linear), methods)


def _computes_alike(layer: torch.nn.Module, is_turned: bool, *dtypes: torch.dtype) -> bool:
    """Whether a layer computes the same as a linear layer, in trials with another weight and bias of these dtypes.
    False for a layer with further tensors or children, which a checkpoint could change."""
    given = layer._parameters
    if any(layer._buffers) or any(layer._modules) or not {*given} <= {"weight", "bias"} or given["weight"] is None:
        return False
    rows, columns = given["weight"].shape[::-1] if is_turned else given["weight"].shape
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for dtype in dtypes:
            weight = _weight(rows, columns).to(dtype)
            bias = None if given.get("bias") is None else torch.nn.Parameter(torch.randn(rows).to(dtype))
            trial = copy.copy(layer)  # a copy, to keep attributes such as a factor
            trial._parameters = {
                **given,
                "weight": torch.nn.Parameter(weight.t().contiguous() if is_turned else weight),
            }
            if "bias" in given:
                trial._parameters["bias"] = bias
            inputs = [torch.randn(*shape, columns).to(dtype) for shape in _SHAPES]
            found += [_agrees(trial, each, weight, bias) for each in inputs]
    return True in found and False not in found


def _agrees(
    layer: torch.nn.Module, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> bool | None:
    """Whether a layer computes what a linear layer computes; None if it does not take such inputs."""
    expected = torch.nn.functional.linear(inputs, weight, bias)
    tolerance = _TOLERANCES[inputs.dtype]
    with suppress(Exception):  # the layer's code may raise anything
        found = layer(inputs)
        if isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (expected.shape, expected.dtype):
            return bool(torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())))
        return False
    return None


@functools.lru_cache(1)
def _weight(rows: int, columns: int) -> torch.Tensor:
    """Random numbers, float32 [rows, columns]. The cache helps because layers of one shape often follow each other."""
    return torch.randn(rows, columns)
