"""The entries of `model.adapters` of a manifest, as plans have them."""

from __future__ import annotations

from etbuild.plan import kinds
from etbuild.plan.part import Part

OF_LAYER = "adapters"
"""The name of a layer's child that holds its adapters. Their weights are `LAYER.adapters.NAME.lora_A` and `lora_B`."""


class AdapterFiles(Part, section="Adapter", definition="adapter", also=kinds.InputName):
    """The files of a LoRA adapter. For example `{config: math/adapter_config.json, weights: math/adapter_model.bin}`.

    Attributes:
        config: The name of the declared input with PEFT's configuration. For example `math/adapter_config.json`.
        weights: The name of the declared input with the weights: a .safetensors file, or a .pt, .pth, .bin or .ckpt
            file of torch.save. Only the last step of a build reads them. For example `math/adapter_model.safetensors`.
    """

    config: kinds.InputName
    weights: kinds.InputName
