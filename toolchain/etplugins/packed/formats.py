"""The forms of packed checkpoints that a build reads, as `quantization_config` names them. Needs no torch."""

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
    """The library or format that packed a checkpoint. Older files do not name bitsandbytes.

    Args:
        config: `quantization_config` of the checkpoint.
    """
    old = config.get("load_in_4bit") or config.get("load_in_8bit")
    return str(config.get("quant_method", "bitsandbytes" if old else None))


def other_form(config: Mapping[str, Any]) -> str | None:
    """The keys of an unsupported form of a checkpoint, as a text for users; None if the form is read.

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
    """The number of columns that share a scale; None if the configuration does not give one number for all layers.

    Args:
        config: `quantization_config` of the checkpoint.
    """
    groups = config.get("config_groups")
    entries = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else [config]
    sizes = {entry["group_size"] for entry in entries if isinstance(entry, Mapping) and "group_size" in entry}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def _forms(config: Mapping[str, Any]) -> Iterator[Any]:
    """The forms that compressed-tensors names, for all layers and for groups of them."""
    groups = config.get("config_groups")
    for section in (config, config.get("sparsity_config"), *(groups.values() if isinstance(groups, Mapping) else ())):
        if isinstance(section, Mapping):
            yield section.get("format")
