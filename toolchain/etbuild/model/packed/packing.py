"""The packing of a model's checkpoint, from the configuration of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.model.packed.formats import method_of
from etbuild.model.tensor_bytes import dtype_name


@dataclass(frozen=True)
class Packing:
    """The packing of a model's checkpoint.

    Attributes:
        config: `quantization_config` in the configuration of the model.
        dtype: PyTorch's name of the dtype of the model, which its weights have after unpacking.
    """

    config: Mapping[str, Any]
    dtype: str

    @property
    def method(self) -> str:
        """The library or format."""
        return method_of(self.config)


def packing_of(module: torch.nn.Module) -> Packing | None:
    """The packing of a module's checkpoint; None without `quantization_config`, which models of transformers have."""
    config = getattr(getattr(module, "config", None), "quantization_config", None)
    if not isinstance(config, Mapping):
        return None
    return Packing(config, dtype_name(next((parameter.dtype for parameter in module.parameters()), torch.float32)))
