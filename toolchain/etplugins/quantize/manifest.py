"""The section `quantize` of a manifest: its checks, and its form in plans."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild import backends
from etbuild.errors import DocumentPath, Problem, did_you_mean
from etbuild.manifest import file_names, partitioners
from etbuild.manifest.partitioners import at_name, name_and_options
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import BackendEntry, Manifest, Method, Partitioners
from etplugins.quantize.parts import CONFIGS
from etplugins.quantize.sections import Pt2e, Quantize, Torchao


class QuantizeSection(Section):
    """How methods are quantized."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems that a schema cannot find, of all methods and of their defaults."""
        has_recipe = "recipe" in manifest
        yield from _check_quantize(manifest.get("defaults", {}).get("quantize"), ("defaults", "quantize"), has_recipe)
        for name, method in manifest.get("methods", {}).items():
            yield from _check_quantize(method.get("quantize"), ("methods", name, "quantize"), has_recipe)
        yield from _check_samples(manifest)
        yield from _check_io(manifest)
        yield from _check_quantizers_fit(manifest)

    def backends(self, manifest: Manifest) -> Iterator[str]:
        """Yields the name of the backend of each quantizer."""
        parts = (manifest.get("defaults", {}), *manifest.get("methods", {}).values())
        for quantize in (part.get("quantize") for part in parts):
            for entry in (quantize or {}).get("pt2e", {}).get("quantizers", []):
                yield name_and_options(entry)[0]

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest with a calibration wherever it names quantizers."""
        defaults, methods = manifest.get("defaults", {}), manifest["methods"]
        if "quantize" in defaults:
            defaults = {**defaults, "quantize": _normalized(defaults["quantize"])}
        methods = {name: _with_io(method, defaults.get("quantize")) for name, method in methods.items()}
        methods = {
            name: {**method, "quantize": _normalized(method["quantize"])} if "quantize" in method else method
            for name, method in methods.items()
        }
        return {**manifest, "defaults": defaults, "methods": methods}


def _normalized(quantize: Quantize | None) -> object:
    """How a method is quantized. Without `calibration`, a recipe decides, or the example inputs give the ranges."""
    if quantize is None or "pt2e" not in quantize:
        return quantize
    calibration = quantize["pt2e"].get("calibration", "example_inputs" if "quantizers" in quantize["pt2e"] else None)
    pt2e = {**quantize["pt2e"], "calibration": {} if calibration == "example_inputs" else calibration}
    return {**quantize, "pt2e": pt2e}


def _with_io(method: Method, inherited: Quantize | None) -> Method:
    """A method that has its `io` where plans have it: in its `quantize`."""
    quantize = method.get("quantize", inherited)
    if "io" not in method or quantize is None or "pt2e" not in quantize:
        return method
    return {**method, "quantize": {**quantize, "pt2e": {**quantize["pt2e"], "io": method["io"]}}}


def _check_io(manifest: Manifest) -> Iterator[Problem]:
    """Checks that a method with `io` is quantized by PT2E."""
    defaults = manifest.get("defaults", {}).get("quantize")
    for name, method in manifest.get("methods", {}).items():
        if "io" in method and "program" not in method and "pt2e" not in (method.get("quantize", defaults) or {}):
            hint = "write for example `quantize: {pt2e: {quantizers: [xnnpack]}}`, or remove `io`"
            message = f"`io` needs `quantize` with `pt2e` for the method `{name}`: only then it computes with integers"
            yield Problem(message, ("methods", name, "io"), hint, at_key=True)


def _check_samples(manifest: Manifest) -> Iterator[Problem]:
    """Checks that a method which its samples calibrate has some."""
    defaults = manifest.get("defaults", {}).get("quantize")
    for name, method in manifest.get("methods", {}).items():
        quantize = method.get("quantize", defaults) if "program" not in method and "samples" not in method else None
        if (quantize or {}).get("pt2e", {}).get("calibration") == "samples":
            hint = "name an entry of the manifest's `samples`, or calibrate on a file or a factory"
            yield Problem(f"`calibration: samples` needs `samples` in the method `{name}`", ("methods", name), hint)


def _check_quantizers_fit(manifest: Manifest) -> Iterator[Problem]:
    """Checks that a method is quantized for the options with which it is lowered."""
    defaults, methods = manifest.get("defaults", {}), manifest.get("methods", {})
    seen = set()
    for name, method in methods.items():
        own = "quantize" in method
        quantize: Quantize | None = method["quantize"] if own else defaults.get("quantize")
        lowered, _ = partitioners.of_method(defaults, methods, name)
        if (id(quantize), id(lowered)) in seen:
            continue
        seen.add((id(quantize), id(lowered)))
        place: DocumentPath = ("methods", name) if own else ("defaults",)
        for index, entry in enumerate((quantize or {}).get("pt2e", {}).get("quantizers", [])):
            here = (*place, "quantize", "pt2e", "quantizers", index, "options")
            yield from _check_quantizer_fits(entry, here, name, lowered)


def _check_quantizer_fits(
    entry: str | BackendEntry, path: DocumentPath, method: str, lowered: Partitioners
) -> Iterator[Problem]:
    backend, options = name_and_options(entry)
    for option in backends.claims(backend).same_options:
        given = options.get(option)
        others = [of for name, of in map(name_and_options, lowered) if name == backend] if given is not None else []
        if others and given not in [other.get(option) for other in others]:
            message = f"the method `{method}` is quantized for {given} and lowered for {others[0].get(option)}"
            yield Problem(message, (*path, option), "write the same in both")


def _check_quantize(quantize: Quantize | None, path: DocumentPath, recipe: bool) -> Iterator[Problem]:
    if quantize is None:
        return
    for index, entry in enumerate(quantize.get("torchao", [])):
        yield from _check_torchao(entry, (*path, "torchao", index))
    if "pt2e" not in quantize:
        return
    pt2e, path = quantize["pt2e"], (*path, "pt2e")
    for index, quantizer in enumerate(pt2e.get("quantizers", [])):
        here = (*path, "quantizers", index)
        yield from at_name(backends.check_quantizer(*name_and_options(quantizer), here), quantizer, here)
    if "quantizers" not in pt2e and not recipe:
        hint = "add `quantizers: [xnnpack]`, or use a recipe that has quantizers"
        yield Problem("the key `quantizers` is missing", path, hint)
    yield from _check_calibration(pt2e, path)


def _check_torchao(entry: Torchao, path: DocumentPath) -> Iterator[Problem]:
    config = entry["config"]
    if ":" in config:
        for key in ("group_size", "scales", "fitting"):
            if key in entry:
                hint = "set it in the configuration that the callable returns"
                yield Problem(f"`{key}` does not go with a callable", (*path, key), hint, at_key=True)
        return
    if config not in CONFIGS:
        yield Problem(f"unknown configuration `{config}`", (*path, "config"), did_you_mean(config, CONFIGS))
    elif config == "packed":
        for key in ("group_size", "scales", "fitting"):
            if key in entry:
                hint = "remove it: the checkpoint says how its weights are packed, and other layers go to later entries"
                yield Problem(f"`{key}` does not go with `packed`", (*path, key), hint, at_key=True)
    elif entry.get("fitting") and entry.get("group_size", CONFIGS[config]) is None:
        message = "every layer is fitting if the whole row shares a scale"
        yield Problem(message, (*path, "fitting"), "set `group_size`, or remove `fitting`", at_key=True)
    elif "embedding" in entry.get("layers", []) and "da" in config:
        message = f"`{config}` is for linear layers: an embedding has no activations to quantize"
        yield Problem(message, (*path, "layers"), "add an entry for embeddings, with `int4` or `int8`")
    if "kwargs" in entry:
        yield Problem("`kwargs` goes with a callable in `config`", (*path, "kwargs"), at_key=True)


def _check_calibration(pt2e: Pt2e, path: DocumentPath) -> Iterator[Problem]:
    here = (*path, "calibration")
    if "calibration" not in pt2e:
        quantizers = [name_and_options(entry)[1] for entry in pt2e.get("quantizers", [])]
        if "qat" not in pt2e and not all(options.get("dynamic") is True for options in quantizers):
            hint = "name a file or a factory of batches; or write `calibration: example_inputs`"
            yield Problem("the key `calibration` is missing: its data gives the ranges of activations", path, hint)
        return
    if "qat" in pt2e:
        message = "`calibration` does not go with `qat`, which finds the ranges by training"
        yield Problem(message, here, "remove one of the two", at_key=True)
    calibration = pt2e["calibration"]
    if not isinstance(calibration, dict) or "samples" in calibration:
        return
    sources = [key for key in ("file", "factory") if key in calibration]
    if len(sources) != 1:
        got = "both" if sources else "none of them"
        hint = 'for example {factory: "calibration:batches"}'
        yield Problem(f"calibration needs one of `file` and `factory`; this one has {got}", here, hint)
        return
    for key, owner in {"keys": "file", "kwargs": "factory"}.items():
        if key in calibration and owner != sources[0]:
            yield Problem(f"`{key}` goes with `{owner}`, not with `{sources[0]}`", (*here, key), at_key=True)
    if "file" in calibration:
        yield from file_names.check_input(calibration["file"], (*here, "file"))
        yield from file_names.check_suffix(calibration["file"], (*here, "file"))
