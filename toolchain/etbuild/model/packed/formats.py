"""The forms of packed checkpoints that a build reads. `quantization_config` says which one it is, so this needs no
torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

READ = ("awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4", "torchao")
"""The values of `quant_method` that are read."""
HINT = f"take the checkpoint as it was before; these are read: {', '.join(READ)} (see the page `Quantized checkpoints`)"
_NOT_READ = ("sparse-24-bitmask", "sparse-bitmask", "marlin-24", "mxfp6-pack-quantized")
_GPTQ_VERSIONS, _GPTQ_BITS = ("gptq", "gptq_v2"), range(2, 9)
_AWQ_BITS = 4


def method_of(config: Mapping[str, Any]) -> str:
    """The library or format. Older files do not name bitsandbytes.

    Args:
        config: `quantization_config` of the checkpoint.
    """
    old = config.get("load_in_4bit") or config.get("load_in_8bit")
    return str(config.get("quant_method", "bitsandbytes" if old else None))


def other_form(config: Mapping[str, Any]) -> str | None:
    """The keys that say that a checkpoint has a form of its method which is not read, for users; None if there are
    none.

    Args:
        config: `quantization_config` of the checkpoint.
    """
    method = method_of(config)
    if method == "gptq":
        bits, version = config.get("bits"), config.get("checkpoint_format", "gptq")
        if version not in _GPTQ_VERSIONS or not isinstance(bits, int) or bits not in _GPTQ_BITS:
            return f"`checkpoint_format: {version}` with `bits: {bits}`"
    elif method == "awq":
        bits, version = config.get("bits", config.get("w_bit")), str(config.get("version", "gemm")).lower()
        if version != "gemm" or bits != _AWQ_BITS:
            return f"`version: {version}` with `bits: {bits}`"
    elif method == "compressed-tensors":
        return next((f"`format: {form}`" for form in _forms(config) if form in _NOT_READ), None)
    return None


def group_size(config: Mapping[str, Any]) -> int | None:
    """How many columns share a scale, as a configuration says; None if it says nothing, or not the same for all layers.

    Args:
        config: `quantization_config` of the checkpoint.
    """
    groups = config.get("config_groups")
    of_groups = [each.get("weights") for each in groups.values()] if isinstance(groups, Mapping) else [config]
    found = {each["group_size"] for each in of_groups if isinstance(each, Mapping) and "group_size" in each}
    size = found.pop() if len(found) == 1 else None
    return size if isinstance(size, int) else None


def _forms(config: Mapping[str, Any]) -> Iterator[Any]:
    """The forms that compressed-tensors names, for all layers and for groups of them."""
    groups = config.get("config_groups")
    for each in (config, config.get("sparsity_config"), *(groups.values() if isinstance(groups, Mapping) else ())):
        if isinstance(each, Mapping):
            yield each.get("format")
