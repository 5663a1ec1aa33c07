"""Gives layers the integers of a packed checkpoint as torchao's tensors, so that nothing quantizes them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torchao.core.config import AOBaseConfig
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
    IntxUnpackedToInt8TensorActivationQuantization as Activations,
)
from torchao.quantization.transform_module import register_quantize_module_handler

from etplugins.packed.integers import Integers


@dataclass
class KeepIntegers(AOBaseConfig):  # type: ignore[misc]
    """A configuration of torchao that gives layers the integers of a checkpoint.

    Attributes:
        integers: The integers, by the name of the weight.
        names: The name of the weight of each layer, by the layer's `id`.
    """

    integers: Mapping[str, Integers]
    names: Mapping[int, str]


@register_quantize_module_handler(KeepIntegers)  # type: ignore[untyped-decorator]
def _keep(layer: torch.nn.Module, config: KeepIntegers) -> torch.nn.Module:
    weight = quantized(config.integers[config.names[id(layer)]], layer)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


def quantized(integers: Integers, layer: torch.nn.Module) -> torch.Tensor:
    """The integers as torchao's tensor.

    As in `8da4w`, a linear layer quantizes its input to 8 bits when it runs: XNNPACK has kernels with groups only for
    such layers.

    Args:
        integers: The integers, which fit the layer.
        layer: The layer.
    """
    integers = integers.positive() if isinstance(layer, torch.nn.Linear) else integers
    weight: torch.Tensor = IntxUnpackedToInt8Tensor(
        qdata=integers.values.contiguous(),
        scale=integers.scales.to(layer.weight.dtype),
        zero_point=torch.zeros(integers.scales.shape, dtype=torch.int8),
        target_dtype=torch.int4 if integers.bits <= 4 else torch.int8,
        block_size=(1, integers.group),
        dtype=layer.weight.dtype,
        activation_quantization=Activations.INT8_ASYM_PER_TOKEN if isinstance(layer, torch.nn.Linear) else None,
    )
    return weight
