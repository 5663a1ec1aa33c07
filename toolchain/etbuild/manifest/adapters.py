"""LoRA adapters in a manifest: what they stand for, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from etbuild.errors import DocumentPath, Problem, did_you_mean
from etbuild.manifest.sections import Adapter, Manifest, Method, Model

OF_LAYER = "adapters"
"""What a layer calls the child that holds its adapters: their weights are `LAYER.adapters.NAME.lora_A` and `lora_B`."""

_PATH: DocumentPath = ("model", "adapters")
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # what PEFT's `save_pretrained` writes


def files(model: Model) -> dict[str, Adapter]:
    """The files of each adapter of a model, by the adapter's name."""
    return {
        name: {"config": f"{entry}/{_CONFIG}", "weights": f"{entry}/{_WEIGHTS}"} if isinstance(entry, str) else entry
        for name, entry in model.get("adapters", {}).items()
    }


def check(data: Manifest, check_name: Callable[[str, DocumentPath], Iterator[Problem]]) -> Iterator[Problem]:
    """Yields the problems of adapters.

    Args:
        data: The manifest, completed.
        check_name: Yields the problems of the name of a declared input at a place.
    """
    adapters, used = data.get("model", {}).get("adapters", {}), set()
    for name, entry in adapters.items():
        path = (*_PATH, name)
        if isinstance(entry, str):
            yield from check_name(entry, path)
            yield from _check_folder(entry, path)
        else:
            for key, file in entry.items():
                yield from check_name(str(file), (*path, key))
    for name, method in data.get("methods", {}).items():
        if "adapter" in method:
            used.add(method["adapter"])
            yield from _check_method(name, method, data, adapters)
    for name in adapters:
        if name in data.get("named_data", {}):
            hint = "remove it: the weights of an adapter are always in a file of their own"
            yield Problem(f"the tag `{name}` is the adapter's", ("named_data", name), hint, at_key=True)
        if name not in used:
            hint = f"write `adapter: {name}` in a method, such as `forward_{name}: {{adapter: {name}, ...}}`"
            yield Problem("no method computes with this adapter", (*_PATH, name), hint, at_key=True)


def _check_folder(name: str, path: DocumentPath) -> Iterator[Problem]:
    if name.endswith((".safetensors", ".bin", ".json")):
        folder = name.rpartition("/")[0]
        hint = f"write the folder `{folder}`, or " if folder else "write "
        hint += "`{config: adapter_config.json, weights: adapter_model.safetensors}`"
        yield Problem(f"`{name}` is a file, and an adapter has two", path, hint)


def _check_method(name: str, method: Method, data: Manifest, adapters: Collection[str]) -> Iterator[Problem]:
    """Checks a method that computes with an adapter."""
    adapter, path = method["adapter"], ("methods", name, "adapter")
    if adapter not in adapters:
        hint = did_you_mean(adapter, adapters) if adapters else "the model has no `adapters`"
        yield Problem(f"there is no adapter `{adapter}`", path, hint)
    if "pt2e" in (method.get("quantize", data.get("defaults", {}).get("quantize")) or {}):
        hint = "quantize with `torchao`, which leaves adapters as they are"
        yield Problem("`quantize.pt2e` would quantize the weights of the adapter into the program", path, hint)
