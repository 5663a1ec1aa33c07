"""LoRA adapters in a manifest: what they stand for, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etbuild.errors import DocumentPath, Problem, did_you_mean
from etbuild.manifest.mappings import mapping

OF_LAYER = "adapters"
"""What a layer calls the child that holds its adapters: their weights are `LAYER.adapters.NAME.lora_A` and `lora_B`."""

_PATH: DocumentPath = ("model", "adapters")
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # what PEFT's `save_pretrained` writes


def methods(adapters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The methods of a language model with adapters, if the manifest has none; None without adapters."""
    return {"forward": {}, **{f"forward_{name}": {"adapter": name} for name in adapters}} if adapters else None


def files(manifest: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The files of each adapter of a checked manifest, by the adapter's name."""
    return {name: _files(entry) for name, entry in manifest["model"]["adapters"].items()}


def weights(adapters: Mapping[str, Any]) -> list[str]:
    """The files with the weights of adapters, which may break their schema."""
    entries = [_files(entry) if isinstance(entry, str) else entry for entry in adapters.values()]
    return [str(entry.get("weights")) for entry in entries if isinstance(entry, dict)]


def _files(entry: str | dict[str, str]) -> dict[str, str]:
    return {"config": f"{entry}/{_CONFIG}", "weights": f"{entry}/{_WEIGHTS}"} if isinstance(entry, str) else entry


def check(data: dict[str, Any], check_name: Callable[[str, DocumentPath], Iterator[Problem]]) -> Iterator[Problem]:
    """Yields the problems of adapters.

    Args:
        data: The manifest, completed. It may break its schema.
        check_name: Yields the problems of the name of a declared input at a place.
    """
    adapters, used = mapping(mapping(data, "model"), "adapters"), set()
    for name, entry in adapters.items():
        yield from _check_files(name, entry, check_name)
    for name, method in mapping(data, "methods").items():
        if isinstance(method, dict) and isinstance(method.get("adapter"), str):
            used.add(method["adapter"])
            yield from _check_method(name, method, data, adapters)
    for name in adapters:
        if name in mapping(data, "named_data"):
            hint = "remove it: the weights of an adapter are always in a file of their own"
            yield Problem(f"the tag `{name}` is the adapter's", ("named_data", name), hint, at_key=True)
        if name not in used:
            hint = f"write `adapter: {name}` in a method, such as `forward_{name}: {{adapter: {name}, ...}}`"
            yield Problem("no method computes with this adapter", (*_PATH, name), hint, at_key=True)


def _check_files(
    name: str, entry: Any, check_name: Callable[[str, DocumentPath], Iterator[Problem]]
) -> Iterator[Problem]:
    path = (*_PATH, name)
    for key, file in entry.items() if isinstance(entry, dict) else [("", entry)]:
        if isinstance(file, str) and file:
            yield from check_name(file, (*path, key) if key else path)
    if isinstance(entry, str) and entry.endswith((".safetensors", ".bin", ".json")):
        folder = entry.rpartition("/")[0]
        hint = f"write the folder `{folder}`, or " if folder else "write "
        hint += "`{config: adapter_config.json, weights: adapter_model.safetensors}`"
        yield Problem(f"`{entry}` is a file, and an adapter has two", path, hint)


def _check_method(
    name: str, method: dict[str, Any], data: dict[str, Any], adapters: dict[str, Any]
) -> Iterator[Problem]:
    """Checks a method that computes with an adapter."""
    adapter, path = method["adapter"], ("methods", name, "adapter")
    if adapter not in adapters:
        hint = did_you_mean(adapter, adapters) if adapters else "the model has no `adapters`"
        yield Problem(f"there is no adapter `{adapter}`", path, hint)
    quantize = mapping(method if "quantize" in method else mapping(data, "defaults"), "quantize")
    if "pt2e" in quantize:
        hint = "quantize with `torchao`, which leaves adapters as they are"
        yield Problem("`quantize.pt2e` would quantize the weights of the adapter into the program", path, hint)
