"""Layers that follow the pooling of features, as the module `Dense` of sentence-transformers computes them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError
from etbuild.plan.parts import DenseLayer

_PATH: DocumentPath = ("model", "huggingface", "dense")
_NAME = "dense"
"""The child of a model that holds its layers."""


class Dense(torch.nn.Module):  # type: ignore[misc]
    """A linear layer with an activation: `activation(W x + b)`. With a residual, `x` is added, or `R x` if the sizes of
    input and output differ.

    Args:
        wanted: What the manifest says about it.
        path: Its place in the manifest.

    Raises InputError if `torch.nn` has no such activation.
    """

    def __init__(self, wanted: DenseLayer, path: DocumentPath) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(wanted.in_features, wanted.out_features, bias=wanted.bias)
        self.activation = _activation(wanted.activation, (*path, "activation"))
        self.has_residual = wanted.residual
        if wanted.residual and wanted.in_features != wanted.out_features:
            self.residual = torch.nn.Linear(wanted.in_features, wanted.out_features, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The output, [..., out_features], of an input, [..., in_features]."""
        made: torch.Tensor = self.activation(self.linear(features))
        if not self.has_residual:
            return made
        return made + (self.residual(features) if hasattr(self, "residual") else features)


def _activation(name: str, path: DocumentPath) -> torch.nn.Module:
    """An activation of `torch.nn` without arguments."""
    known = [*torch.nn.modules.activation.__all__, "Identity"]
    try:
        if name in known:
            kind = getattr(torch.nn, name)
            over_features = {"dim": -1} if "dim" in inspect.signature(kind).parameters else {}  # such as a softmax
            made: torch.nn.Module = kind(**over_features)
            return made
    except TypeError:  # it needs arguments, such as those of an attention
        pass
    raise InputError.at(path, f"torch.nn has no activation `{name}` without arguments", "such as Tanh or Identity")


def add(model: Any, wanted: tuple[DenseLayer, ...]) -> None:
    """Gives a model its layers, as the child `dense`. They have the dtype of the model.

    Args:
        model: The model. It is changed in place.
        wanted: The layers, in their order.
    """
    if wanted and hasattr(model, _NAME):
        raise InputError.at(_PATH, f"`{type(model).__name__}` has a part `{_NAME}` of its own", "leave out `dense`")
    if wanted:
        layers = [Dense(each, (*_PATH, index)) for index, each in enumerate(wanted)]
        model.add_module(_NAME, torch.nn.ModuleList(layers).to(model.dtype))


def apply(model: Any, features: torch.Tensor, wanted: tuple[DenseLayer, ...]) -> torch.Tensor:
    """What the layers of a model make of features.

    Raises InputError if the first layer takes another number of features.
    """
    if wanted and features.shape[-1] != wanted[0].in_features:
        message = f"the layer takes {wanted[0].in_features} features, and the model gives {features.shape[-1]}"
        raise InputError.at((*_PATH, 0, "in_features"), message, f"write {features.shape[-1]}")
    for layer in getattr(model, _NAME) if wanted else ():
        features = layer(features)
    return features
