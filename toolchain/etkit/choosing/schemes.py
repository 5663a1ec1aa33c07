"""The schemes that `etbuild tune` tries: what each changes in a manifest."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etbuild import backends
from etbuild.errors import InputError
from etbuild.manifest.partitioners import name_and_options

BASE = "float32"
"""The scheme with which all others are compared."""
_LIMITS = ("max_program_bytes", "max_named_data_bytes", "max_duplicate_bytes", "max_memory_bytes", "min_delegated")
_OF_LINEAR_LAYERS = ("8da8w", "8da4w")
_OPERATORS = (["conv2d"], ["linear"])
"""The kinds of operators that are quantized by themselves, if a quantizer has the option."""


@dataclass(frozen=True)
class Scheme:
    """A scheme.

    Attributes:
        name: Its name, which may be that of a variant.
        patch: What a variant of the manifest writes for it; empty if the manifest has it already.
    """

    name: str
    patch: dict[str, Any]


def schemes(data: Mapping[str, Any]) -> list[Scheme]:
    """The schemes that fit the backends of a manifest: first float32 without quantization, then the others.

    Args:
        data: A checked manifest, without variants and parameters.

    Raises:
        InputError: The manifest leaves no choice.
    """
    _check(data)
    plain = _plain(data)
    targets = {BASE: plain, "float16": _in_float16(plain)}
    tuned = _tuned(data)
    for name, quantize in _quantizations(data, tuned):
        targets[name] = _quantized(plain, tuned, quantize)
    found = [Scheme(name, _patch(data, target)) for name, target in targets.items()]
    if all(each.patch for each in found):  # the manifest has a scheme of its own
        found.insert(1, Scheme("as-it-is", {}))
    return found


def without_limits(data: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without limits for sizes: a scheme that breaks one is measured, too."""
    checks = {name: each for name, each in data.get("checks", {}).items() if name not in _LIMITS}
    return {**data, "checks": checks}


def _check(data: Mapping[str, Any]) -> None:
    if "recipe" in data:
        hint = "name its partitioners and its quantization yourself"
        raise InputError.at(("recipe",), "a recipe decides how the program is quantized", hint)
    if not _tuned(data):
        hint = "set the quantization when you export them"
        raise InputError.at(("methods",), "each method comes from a file, which is exported already", hint)


def _tuned(data: Mapping[str, Any]) -> list[str]:
    """The methods that schemes quantize: those that the manifest quantizes, or all if it quantizes none."""
    methods = {name: each for name, each in data["methods"].items() if "program" not in each}
    inherited = data.get("defaults", {}).get("quantize")
    quantized = [name for name, each in methods.items() if each.get("quantize", inherited)]
    return quantized or [*methods]


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest in float32, without quantization."""
    plain: dict[str, Any] = copy.deepcopy(dict(data))
    for part in (plain.get("defaults", {}), *plain["methods"].values()):
        part.pop("quantize", None)
    for part in (plain, plain.get("model", {})):
        part.pop("dtype", None)
    return plain


def _in_float16(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest in float16, with its example inputs."""
    target: dict[str, Any] = copy.deepcopy(dict(plain))
    target["model"] = {**target.get("model", {}), "dtype": "float16"}
    for method in target["methods"].values():
        for key in ("example_inputs", "example_kwargs"):
            if key in method:
                method[key] = _halved(method[key])
    return target


def _halved(example: Any) -> Any:
    """Example inputs in which tensors by shape are float16 where they were float32."""
    if isinstance(example, list):
        return [_halved(each) for each in example]
    if not isinstance(example, dict):
        return example
    if "shape" in example:
        return {**example, "dtype": "float16"} if example.get("dtype", "float32") == "float32" else example
    return {key: _halved(each) for key, each in example.items()}


def _quantizations(data: Mapping[str, Any], tuned: list[str]) -> Iterator[tuple[str, Any]]:
    """The names of quantizations, and the sections for `quantize`."""
    named = {name: options for method in tuned for name, options in _partitioners(data, method)}
    calibration = "samples" if all("samples" in data["methods"][name] for name in tuned) else "example_inputs"
    quantizer = next((name for name in named if (found := backends.find(name)) is not None and found.has_quantizer), "")
    if quantizer:
        backend, known = backends.get(quantizer), _options(quantizer)
        same = {name: value for name, value in named[quantizer].items() if name in backend.same_options}

        def pt2e(options: Mapping[str, Any], calibrated: bool = True) -> Any:
            given = {**same, **options}
            entry = {"backend": quantizer, "options": given} if given else quantizer
            return {"pt2e": {"quantizers": [entry], **({"calibration": calibration} if calibrated else {})}}

        best = {"per_channel": True} if "per_channel" in known else {}
        yield "int8", pt2e(best)
        if best:
            yield "int8-per-tensor", pt2e({})
        if "dynamic" in known:
            yield "int8-dynamic", pt2e({**best, "dynamic": True}, calibrated=False)
        for kinds in _OPERATORS if "operators" in known else ():
            yield f"int8-{'-'.join(kinds)}", pt2e({**best, "operators": kinds})
    if {*named} - {"portable"}:
        for config in _OF_LINEAR_LAYERS:
            yield config, {"torchao": [{"config": config}]}
    yield "int8-weights", {"torchao": [{"config": "int8"}]}


def _options(quantizer: str) -> Mapping[str, Any]:
    """The options of a quantizer, from its schema."""
    path = backends.get(quantizer).quantizer_schema
    found: Mapping[str, Any] = {} if path is None else json.loads(path.read_text("utf-8")).get("properties", {})
    return found


def _partitioners(data: Mapping[str, Any], method: str) -> list[tuple[str, Mapping[str, Any]]]:
    inherited = data.get("defaults", {}).get("partitioners", [])
    inherited = inherited.get(method, []) if isinstance(inherited, dict) else inherited
    return [name_and_options(entry) for entry in data["methods"][method].get("partitioners", inherited)]


def _quantized(plain: Mapping[str, Any], tuned: list[str], quantize: Any) -> dict[str, Any]:
    target: dict[str, Any] = copy.deepcopy(dict(plain))
    if all(name in tuned for name, method in target["methods"].items() if "program" not in method):
        target["defaults"] = {**target.get("defaults", {}), "quantize": quantize}
    else:
        for name in tuned:
            target["methods"][name]["quantize"] = quantize
    return target


def _patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant writes to make one mapping of another one."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if below := _patch(before, value):
                patch[key] = below
        elif key not in old or before != value:
            patch[key] = value
    return patch
