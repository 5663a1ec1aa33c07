"""What says how the checkpoint of a model is packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.model.packed.formats import method_of
from etbuild.model.tensor_bytes import dtype_name


@dataclass(frozen=True)
class Packing:
    """How the checkpoint of a model is packed.

    Attributes:
        config: `quantization_config` in the configuration of the model.
        dtype: PyTorch's name of the dtype of the model, which counts as that of its weights.
    """

    config: Mapping[str, Any]
    dtype: str

    @property
    def method(self) -> str:
        """The library or format."""
        return method_of(self.config)


def packing_of(module: torch.nn.Module) -> Packing | None:
    """How the checkpoint of a module is packed; None if nothing says that it is. Only models of transformers say it."""
    found = getattr(getattr(module, "config", None), "quantization_config", None)
    if not isinstance(found, Mapping):
        return None
    return Packing(found, dtype_name(next((each.dtype for each in module.parameters()), torch.float32)))
