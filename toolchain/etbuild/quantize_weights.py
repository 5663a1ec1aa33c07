"""Quantizes the weights of layers with torchao, before a module is exported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torchao.core.config import AOBaseConfig
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.utils import unwrap_tensor_subclass

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.sources import SourceFinder, blame, load_callable

if TYPE_CHECKING:
    from executorch.export import AOQuantizationConfig

Filter = Callable[[torch.nn.Module, str], bool]
_LAYERS = {"linear": torch.nn.Linear, "embedding": torch.nn.Embedding}
_BITS = {"8da4w": torch.int4, "8da8w": torch.int8, "int4": torch.int4, "int8": torch.int8}


def quantize_weights(
    module: torch.nn.Module, entries: list[dict[str, Any]], path: DocumentPath, finder: SourceFinder
) -> torch.nn.Module:
    """A copy of a module, with the weights of some layers quantized.

    Args:
        module: The module, with its weights.
        entries: Of `torchao` in the plan.
        path: Where the manifest says so.
        finder: The declared sources, for configurations that come from there.

    Raises:
        InputError: An entry matches no layer.
        BuildError: torchao refuses a layer.
    """
    module = _copy(module, path)
    layers = _layers_by_entry(module, entries, path)
    configs: list[tuple[AOBaseConfig, Filter | None, DocumentPath]] = []
    for index, entry in enumerate(entries):
        here = (*path, index)
        for name, layer in layers[index].items():
            _check_groups(layer, name, entry, here)
        configs.append((_config(entry, here, finder), _once(layers[index].values()), (*here, "config")))
    return _quantized(module, configs, finder)


def quantize_as_recipe(
    module: torch.nn.Module, configs: list[AOQuantizationConfig], path: DocumentPath, finder: SourceFinder
) -> torch.nn.Module:
    """A copy of a module, with weights quantized as one of ExecuTorch's recipes says.

    Raises:
        BuildError: torchao refuses a layer.
    """
    wanted = [(config.ao_base_config, config.filter_fn, path) for config in configs]
    return _quantized(_copy(module, path), wanted, finder)


def _quantized(
    module: torch.nn.Module, configs: list[tuple[AOBaseConfig, Filter | None, DocumentPath]], finder: SourceFinder
) -> torch.nn.Module:
    for config, filter_fn, path in configs:
        chosen = () if filter_fn is None else (filter_fn,)  # else torchao's own: linear layers
        with blame(path, f"quantizing with {type(config).__name__}", finder):
            quantize_(module, config, *chosen)
    # ExecuTorch's backends look for plain tensors: of torchao's own kind of tensor XNNPACK would take the bits for
    # fp32, and the program would compute nonsense.
    unwrap_tensor_subclass(module)
    return module


def _copy(module: torch.nn.Module, path: DocumentPath) -> torch.nn.Module:
    """A copy, which has to call its own layers, or it would not be quantized, without a word.

    Raises:
        BuildError: It would not.
    """
    for name, child in module.named_modules():
        forward = vars(child).get("forward")
        if forward is not None and getattr(forward, "__self__", None) is not child:
            message = (
                f"`{name or type(child).__name__}` has a `forward` of its own, which a copy would call on the original"
            )
            hint = "make it a method of the class: quantizing weights copies the module"
            raise BuildError([Problem(message, path, hint)])
    return copy.deepcopy(module)


def _once(layers: Iterable[torch.nn.Module]) -> Filter:
    """torchao's filter for some layers. One with two names it meets twice, and would quantize what is quantized."""
    waiting = {id(layer) for layer in layers}

    def chosen(layer: torch.nn.Module, name: str) -> bool:
        del name
        wanted = id(layer) in waiting
        waiting.discard(id(layer))
        return wanted

    return chosen


def _layers_by_entry(
    module: torch.nn.Module, entries: list[dict[str, Any]], path: DocumentPath
) -> list[dict[str, torch.nn.Module]]:
    """For each entry the layers that it quantizes, by name: the first that matches one of a layer's names has it."""
    found: list[dict[str, torch.nn.Module]] = [{} for _ in entries]
    matched = [False] * len(entries)
    names: list[str] = []
    taken: set[int] = set()
    for name, layer in module.named_modules(remove_duplicate=False):
        kind = next((kind for kind, layers in _LAYERS.items() if type(layer) is layers), None)
        if kind is None:
            continue
        names.append(name)
        owners = [index for index, entry in enumerate(entries) if kind in entry["layers"] and _matches(name, entry)]
        if owners and id(layer) not in taken:
            found[owners[0]][name] = layer
            taken.add(id(layer))
        for index in owners:
            matched[index] = True
    problems = [
        Problem(
            f"no {' or '.join(entry['layers'])} layer matches {', '.join(entry['modules'])}",
            (*path, index, "modules"),
            did_you_mean(entry["modules"][0], names) if names else "the module has no such layers",
        )
        for index, entry in enumerate(entries)
        if not matched[index]
    ]
    if problems:
        raise InputError(problems)
    return found


def _matches(name: str, entry: dict[str, Any]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in entry["modules"])


def _config(entry: dict[str, Any], path: DocumentPath, finder: SourceFinder) -> AOBaseConfig:
    if ":" in entry["config"]:
        here = (*path, "config")
        create = load_callable(entry["config"], finder, here)
        with blame(here, f"`{entry['config']}`", finder):
            config = create(**entry["kwargs"])
        if not isinstance(config, AOBaseConfig):
            message = f"`{entry['config']}` returned {type(config).__name__}, not a configuration of torchao"
            raise BuildError([Problem(message, here)])
        return config
    bits, size = _BITS[entry["config"]], entry["group_size"]
    granularity = PerAxis(0) if size is None else PerGroup(size)
    if "da" in entry["config"]:
        return Int8DynamicActivationIntxWeightConfig(weight_dtype=bits, weight_granularity=granularity)
    return IntxWeightOnlyConfig(weight_dtype=bits, granularity=granularity)


def _check_groups(layer: torch.nn.Module, name: str, entry: dict[str, Any], path: DocumentPath) -> None:
    size, row = entry.get("group_size"), int(layer.weight.shape[-1])
    if size is not None and row % size:
        hint = f"choose a size that divides {row}, or leave the layer out of `modules`"
        raise BuildError([Problem(f"`{name}` has rows of {row} weights, no multiple of {size}", path, hint)])
