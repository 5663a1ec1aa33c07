"""LoRA adapters in a manifest: completes and checks their entries."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import DocumentPath, Problem, did_you_mean
from etbuild.manifest.file_names import check_input, check_tag
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest, NamedData
from etplugins.lora.parts import OF_LAYER
from etplugins.lora.sections import Adapter

_PATH: DocumentPath = ("model", "adapters")
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # what PEFT's `save_pretrained` writes


class AdaptersSection(Section):
    """The adapters of a model."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of adapters, and of the methods that compute with them."""
        yield from _check(manifest)

    def weights(self, manifest: Manifest) -> Iterator[str]:
        """Yields the file with the weights of each adapter."""
        yield from (entry["weights"] for entry in _files(manifest).values() if "weights" in entry)

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest with both files of each adapter, and with a tag for its weights."""
        model, files = manifest["model"], _files(manifest)
        tags: dict[str, NamedData] = {name: {"parameters": [f"*{OF_LAYER}.{name}.lora_?"]} for name in files}
        named_data = {**manifest.get("named_data", {}), **tags}
        return {**manifest, "model": {**model, "adapters": {**files}}, "named_data": named_data}


def _adapters(manifest: Manifest) -> dict[str, str | Adapter]:
    return manifest.get("model", {}).get("adapters", {})


def _files(manifest: Manifest) -> dict[str, Adapter]:
    return {
        name: {"config": f"{entry}/{_CONFIG}", "weights": f"{entry}/{_WEIGHTS}"} if isinstance(entry, str) else entry
        for name, entry in _adapters(manifest).items()
    }


def _check(data: Manifest) -> Iterator[Problem]:
    """Yields the problems of adapters, and of the methods that compute with them."""
    used, adapters = set(), _adapters(data)
    for name, method in data.get("methods", {}).items():
        if "adapter" in method:
            used.add(method["adapter"])
            if method["adapter"] not in adapters:
                hint = did_you_mean(method["adapter"], adapters) if adapters else "the model has no `adapters`"
                yield Problem(f"there is no adapter `{method['adapter']}`", ("methods", name, "adapter"), hint)
            if "pt2e" in (method.get("quantize", data.get("defaults", {}).get("quantize")) or {}):
                hint = "quantize with `torchao`, which leaves adapters as they are"
                message = "`quantize.pt2e` would quantize the weights of the adapter into the program"
                yield Problem(message, ("methods", name, "adapter"), hint)
    for name, entry in adapters.items():
        path = (*_PATH, name)
        yield from check_tag(name, path)
        if isinstance(entry, str):
            yield from check_input(entry, path)
            yield from _check_folder(entry, path)
        else:
            for key, file in entry.items():
                yield from check_input(str(file), (*path, key))
        if name in data.get("named_data", {}):
            hint = "remove it: the weights of an adapter are always in a file of their own"
            yield Problem(f"the tag `{name}` is the adapter's", ("named_data", name), hint, at_key=True)
        if name not in used:
            hint = f"write `adapter: {name}` in a method, such as `forward_{name}: {{adapter: {name}, ...}}`"
            yield Problem("no method computes with this adapter", path, hint, at_key=True)


def _check_folder(name: str, path: DocumentPath) -> Iterator[Problem]:
    if name.endswith((".safetensors", ".bin", ".json")):
        folder = name.rpartition("/")[0]
        hint = f"write the folder `{folder}`, or " if folder else "write "
        hint += "`{config: adapter_config.json, weights: adapter_model.safetensors}`"
        yield Problem(f"`{name}` is a file, and an adapter has two", path, hint)
