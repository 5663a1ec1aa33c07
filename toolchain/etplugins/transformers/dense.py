"""Layers that follow the pooling of features, as the module `Dense` of sentence-transformers computes them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etplugins.transformers.parts import DenseLayer

_PATH: DocumentPath = ("model", "huggingface", "dense")
_NAME = "dense"
"""The name of the model's child that holds the layers."""


class DenseModule(torch.nn.Module):  # type: ignore[misc]
    """A linear layer with an activation: `activation(W x + b)`. With a residual, `x` is added, or `R x` if the sizes of
    input and output differ.

    Args:
        settings: The layer in the plan.
        path: The document path of the layer.

    Raises InputError if `torch.nn` has no such activation.
    """

    def __init__(self, settings: DenseLayer, path: DocumentPath) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(settings.in_features, settings.out_features, bias=settings.bias)
        self.activation = _activation(settings.activation, (*path, "activation"))
        self.has_residual = settings.residual
        if settings.residual and settings.in_features != settings.out_features:
            self.residual = torch.nn.Linear(settings.in_features, settings.out_features, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Takes features, [..., in_features], and returns features, [..., out_features]."""
        outputs: torch.Tensor = self.activation(self.linear(features))
        if not self.has_residual:
            return outputs
        return outputs + (self.residual(features) if hasattr(self, "residual") else features)


def _activation(name: str, path: DocumentPath) -> torch.nn.Module:
    """An activation of `torch.nn` that needs no arguments, over the last dimension. Raises InputError."""
    names = [*torch.nn.modules.activation.__all__, "Identity"]
    try:
        if name in names:
            kind = getattr(torch.nn, name)
            options = {"dim": -1} if "dim" in inspect.signature(kind).parameters else {}  # such as a softmax
            activation: torch.nn.Module = kind(**options)
            return activation
    except TypeError:  # it needs arguments, as an attention does
        pass
    raise InputError.at(path, f"torch.nn has no activation `{name}` without arguments", "such as Tanh or Identity")


def add(model: Any, layers: tuple[DenseLayer, ...]) -> None:
    """Gives a model the child `dense` with layers in the dtype of the model.

    Args:
        model: The model. It is changed in place.
        layers: The layers in the plan, in their order.
    """
    if layers and hasattr(model, _NAME):
        raise InputError.at(_PATH, f"`{type(model).__name__}` has a part `{_NAME}` of its own", "leave out `dense`")
    if layers:
        modules = [DenseModule(layer, (*_PATH, index)) for index, layer in enumerate(layers)]
        model.add_module(_NAME, torch.nn.ModuleList(modules).to(model.dtype))


def apply(model: Any, features: torch.Tensor, layers: tuple[DenseLayer, ...]) -> torch.Tensor:
    """Features after the layers of a model.

    Raises InputError if the first layer takes another number of features.
    """
    if layers and features.shape[-1] != layers[0].in_features:
        message = f"the layer takes {layers[0].in_features} features, and the model gives {features.shape[-1]}"
        raise InputError.at((*_PATH, 0, "in_features"), message, f"write {features.shape[-1]}")
    for module in getattr(model, _NAME) if layers else ():
        features = module(features)
    return features
