"""The section `samples` of a manifest: its checks, and the samples of each method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from etbuild.errors import DocumentPath, Problem, counted, did_you_mean
from etbuild.files.weights_suffixes import NUMPY_SUFFIX, WEIGHTS_SUFFIXES
from etbuild.manifest import file_names
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest
from etplugins.samples.parts import FOLDER
from etplugins.samples.sections import Samples

CALIBRATION = "samples"
"""The value of `calibration` that stands for the samples of the method."""
_LOADERS = ("loader", "image", "sound", "keys")


class SamplesSection(Section):
    """Lists of samples, and the methods that they are for."""

    def completed(self, manifest: Manifest) -> Manifest:
        """The manifest with the content of the samples in each method and its calibration, in place of their name."""
        known, defaults = manifest.get("samples", {}), manifest.get("defaults", {})
        methods: dict[str, Any] = {}
        for name, method in manifest.get("methods", {}).items():
            methods[name] = method
            if isinstance(samples := known.get(cast("str", method.get("samples"))), dict):
                read = {key: value for key, value in samples.items() if key != "labels"}
                methods[name] = {**method, "samples": read, **_calibrated(method, defaults, read)}
        return cast("Manifest", {**manifest, "methods": methods})

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of samples that a schema cannot find."""
        known = manifest.get("samples", {})
        for name, samples in known.items():
            yield from _check(samples, ("samples", name))
        for name, method in manifest.get("methods", {}).items():
            if isinstance(named := method.get("samples"), str):
                path: DocumentPath = ("methods", name, "samples")
                yield Problem(f"there are no samples `{named}`", path, did_you_mean(named, known) or _ADD)


_ADD = 'add `samples: {NAME: {files: "photos/*.png", loader: "images:load"}}`'


def _calibrated(method: Any, defaults: Any, samples: dict[str, Any]) -> dict[str, Any]:
    """The method's quantization with its samples, if these calibrate it."""
    quantize = method.get("quantize", defaults.get("quantize"))
    pt2e = (quantize or {}).get("pt2e", {})
    if "program" in method or pt2e.get("calibration") != CALIBRATION:
        return {}
    return {"quantize": {**quantize, "pt2e": {**pt2e, "calibration": {"samples": samples}}}}


def _check(samples: Samples, path: DocumentPath) -> Iterator[Problem]:
    files = samples["files"]
    yield from file_names.check_input(files, (*path, "files"))
    if "**" in files:
        yield Problem("`**` stands for no folders here", (*path, "files"), "write a `*` for each: `photos/*/*.png`")
    given = [key for key in _LOADERS if key in samples]
    if len(given) > 1:
        yield Problem(f"`{given[1]}` does not go with `{given[0]}`", (*path, given[1]), at_key=True)
    if not given or given == ["keys"]:
        known = (*WEIGHTS_SUFFIXES, NUMPY_SUFFIX)
        yield from file_names.check_suffix(
            files, (*path, "files"), known, "; for other files, add `loader`, `image` or `sound`"
        )
    if files.endswith(".safetensors") and not given:
        yield Problem("the key `keys` is missing: it names the tensors in each file", path, "add `keys: [image]`")
    if samples.get("labels", FOLDER) != FOLDER:
        yield from file_names.check_input(samples["labels"], (*path, "labels"))
    image: dict[str, Any] = {**samples.get("image", {})}
    channels = 1 if image.get("colors") == "gray" else 3
    for key in ("mean", "deviation"):
        if len(numbers := image.get(key, [1.0])) not in (1, channels):
            message = f"{counted(len(numbers), 'number')} for {counted(channels, 'channel')}"
            yield Problem(message, (*path, "image", key), "write one number for all channels, or one for each")
    if 0 in image.get("deviation", []):
        yield Problem("a deviation is 0", (*path, "image", "deviation"), "pixels are divided by it")
