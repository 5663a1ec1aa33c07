"""Quantizes the weights of layers with torchao, before a module is exported."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torchao.core.config import AOBaseConfig
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.utils import unwrap_tensor_subclass

from etbuild import plugins
from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.export.quantizers import CannotDefer
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etplugins.quantize import experts, plain_linear
from etplugins.quantize.by_rows import by_rows
from etplugins.quantize.deferred import Deferred
from etplugins.quantize.originals import Filter, Originals
from etplugins.quantize.parts import TorchaoEntry

if TYPE_CHECKING:
    from torch.export import ExportedProgram

LayerChange = tuple[AOBaseConfig, Filter | None, DocumentPath]
_LAYERS = {"linear": torch.nn.Linear, "embedding": torch.nn.Embedding}
_BITS = {"8da4w": torch.int4, "8da8w": torch.int8, "int4": torch.int4, "int8": torch.int8}


class _Kept(Protocol):
    """The integers that layers get from a packed checkpoint. The plug-in that reads the checkpoint makes them.

    Attributes:
        integers: The integers, by the name of the weight.
    """

    integers: Mapping[str, object]

    def config(self, names: Mapping[int, str]) -> AOBaseConfig:
        """A configuration of torchao that gives layers their integers. `names` has the name of the weight of each
        layer, by the layer's `id`."""


class Quantized:
    """A module whose weights can be switched to quantized ones and back.

    The module's own layers change, so that all code that calls them, such as a function from the factory, calls the
    quantized layers. No weights are copied.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        changes: Sequence[LayerChange],
        path: DocumentPath,
        free: bool = False,
        deferred: Deferred | None = None,
    ) -> None:
        """Quantizes the weights once, for all methods that are exported with them. The module stays unquantized.

        Args:
            module: The module.
            changes: The configurations of torchao, in the order in which they are applied.
            path: The document path of the quantization.
            free: Whether to free the weights that are quantized, because no method needs them.
            deferred: Collects recipes for tensors whose content is computed later. None: the content of the weights is
                known.

        Raises:
            BuildError: torchao refuses a layer.
            CannotDefer: The configurations need the content of the weights.
        """
        self._module = module
        self._path = path
        before, self._originals = _State(module), Originals(module, free and deferred is None)
        try:
            with by_rows() if deferred is None else deferred.quantizing(module):
                _quantize(module, changes, self._originals)
            plain_linear.choose(module)
            # ExecuTorch's backends expect plain tensors. XNNPACK would read torchao's tensor subclasses as fp32, and
            # the program would silently compute wrong results. torchao looks at children only.
            unwrap_tensor_subclass(torch.nn.ModuleList([module]))
            self._state = _State(module)
            self._originals.leave()
        finally:
            before.restore()

    @contextmanager
    def __call__(self) -> Iterator[torch.nn.Module]:
        """Switches the module to quantized weights within this context."""
        before = _State(self._module)
        self._state.restore()
        try:
            yield self._module
        finally:
            before.restore()

    def check(self, program: ExportedProgram) -> None:
        """Checks that a method does not read the original tensor of a quantized weight.

        Args:
            program: The method, exported with quantized weights.

        Raises:
            BuildError: The method reads such a tensor, which would silently stay in fp32.
        """
        hint = "read it from its layer on every call: some code keeps a reference to the old tensor"
        problems = [
            Problem(f"`{name}` is quantized, but the method reads the tensor from before", self._path, hint)
            for name in self._originals.read_by(program)
        ]
        BuildError.raise_if(problems)


class _State:
    """The recorded classes and attributes of a module's layers, which torchao may change. Tensors are not copied."""

    _CHANGED_IN_PLACE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")

    def __init__(self, module: torch.nn.Module) -> None:
        self._layers = [(layer, type(layer), self._copied(vars(layer))) for layer in module.modules()]

    def restore(self) -> None:
        """Restores the recorded classes and attributes."""
        for layer, kind, attributes in self._layers:
            if type(layer) is not kind:
                layer.__class__ = kind
            vars(layer).clear()
            vars(layer).update(self._copied(attributes))

    @classmethod
    def _copied(cls, attributes: dict[str, object]) -> dict[str, object]:
        return {
            name: copy.copy(value) if name in cls._CHANGED_IN_PLACE else value for name, value in attributes.items()
        }


def quantize_weights(
    module: torch.nn.Module,
    entries: Sequence[TorchaoEntry],
    path: DocumentPath,
    free: bool,
    called: Collection[torch.nn.Module],
    deferred: Deferred | None = None,
) -> Quantized:
    """Quantizes the weights of layers as the manifest says.

    Args:
        module: The module with its weights.
        entries: The entries of `torchao` in the plan.
        path: The document path of `torchao`.
        free: Whether to free the weights that are quantized, because no method needs them.
        called: The layers of the modules that the methods call. Layers outside of them may be for other methods: those
            that cannot be quantized stay unchanged.
        deferred: Collects recipes for tensors whose content is computed later. None: the content of the weights is
            known.

    Raises:
        CannotDefer: The configurations need the content of the weights.
        InputError: An entry matches no layer, or a layer that it cannot quantize.
        BuildError: torchao refuses a layer, or a configuration cannot be made.
    """
    kept: _Kept | None = plugins.load("quantizer", "packed")(module) if any(each.keeps for each in entries) else None
    layers = _layers_by_entry(module, entries, path, kept)
    changes: list[LayerChange] = []
    for index, entry in enumerate(entries):
        entry_path = (*path, index)
        misfits = {name: _misfit(layer, name, entry, entry_path) for name, layer in layers[index].items()}
        chosen = [layer for name, layer in layers[index].items() if misfits[name] is None]
        problems = [
            problem for name, problem in misfits.items() if problem and (not chosen or layers[index][name] in called)
        ]
        InputError.raise_if(problems)
        names = {id(layer): f"{name}.weight" for name, layer in layers[index].items()}
        keep_integers = kept.config(names) if kept is not None and entry.keeps else None
        path_of_config = (*entry_path, "config")
        mixtures = [layer for layer in chosen if experts.is_experts(layer)]
        plain_layers = [layer for layer in chosen if not experts.is_experts(layer)]
        if mixtures and deferred is not None:
            raise CannotDefer("the experts of a mixture are quantized when their content is known")
        if mixtures:
            experts_config = experts.QuantizeExperts(_BITS[entry.config], entry.group_size, entry.scales)
            changes.append((experts_config, _once(mixtures), path_of_config))
        if plain_layers or not mixtures:
            changes.append((keep_integers or _config(entry, entry_path), _once(plain_layers), path_of_config))
    return Quantized(module, changes, path, free, deferred)


def _quantize(module: torch.nn.Module, changes: Sequence[LayerChange], originals: Originals) -> None:
    for config, filter_fn, path in changes:
        # Without a filter, torchao quantizes linear layers.
        chosen = () if filter_fn is None else (originals.watched(filter_fn),)
        with wrap_user_error(path, f"quantizing with {type(config).__name__}"):
            quantize_(module, config, *chosen)
        originals.free()


def _once(layers: Iterable[torch.nn.Module]) -> Filter:
    """A filter for torchao that selects each layer once: torchao visits a layer with two names twice."""
    waiting = {id(layer) for layer in layers}

    def chosen(layer: torch.nn.Module, name: str) -> bool:
        is_waiting = id(layer) in waiting
        waiting.discard(id(layer))
        if is_waiting and plain_linear.is_turned(layer) is not None:
            plain_linear.become(layer)  # now, because torchao quantizes it before it asks for the next one
        return is_waiting

    return chosen


def _layers_by_entry(
    module: torch.nn.Module, entries: Sequence[TorchaoEntry], path: DocumentPath, kept: _Kept | None
) -> list[dict[str, torch.nn.Module]]:
    """The layers that each entry quantizes, by name. Raises InputError if an entry matches no layer.

    A layer with several names is listed once, under the first of its names that an entry matches. The first entry that
    matches this name quantizes the layer.
    """
    layers = _layers(module)
    matching = [[name for name in layers if _matches(name, layers[name], entry)] for entry in entries]
    integers = {} if kept is None else kept.integers
    matching = [
        [name for name in names if not entry.keeps or f"{name}.weight" in integers]
        for names, entry in zip(matching, entries, strict=True)
    ]
    _check_matching(matching, list(layers), entries, path)
    first = {name: index for index, names in reversed(list(enumerate(matching))) for name in names}
    by_entry: list[dict[str, torch.nn.Module]] = [{} for _ in entries]
    listed: set[int] = set()
    for name, layer in layers.items():
        if name in first and id(layer) not in listed:
            by_entry[first[name]][name] = layer
            listed.add(id(layer))
    return by_entry


def _check_matching(
    matching: list[list[str]], layer_names: list[str], entries: Sequence[TorchaoEntry], path: DocumentPath
) -> None:
    problems = [
        Problem(
            f"no {' or '.join(entry.layers)} layer matches {', '.join(entry.modules)}"
            + (f" and has rows of a multiple of {entry.group_size} weights" if entry.fitting else ""),
            (*path, index, "modules"),
            did_you_mean(entry.modules[0], layer_names) if layer_names else "the module has no such layers",
        )
        for index, (entry, names) in enumerate(zip(entries, matching, strict=True))
        if not names and not entry.keeps
    ]
    InputError.raise_if(problems)


def kept_weights(module: torch.nn.Module, methods: Sequence[Sequence[TorchaoEntry]]) -> tuple[dict[str, str], set[str]]:
    """The weights of a packed checkpoint whose integers methods keep: see `QuantizedModules.kept_weights`."""
    layers = _layers(module)

    def is_kept(name: str, entries: Sequence[TorchaoEntry]) -> bool:
        first = next((entry for entry in entries if _matches(name, layers[name], entry)), None)
        return first is not None and first.keeps

    by_method = [{name for name in layers if is_kept(name, entries)} for entries in methods]
    kinds = {f"{name}.weight": str(_kind(layers[name])) for name in layers if any(name in names for names in by_method)}
    kept_by_all = set.intersection(*by_method) if by_method else set()
    return kinds, {f"{name}.weight" for name in kept_by_all}


def _layers(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The layers that can be quantized, under each of their names. The experts of a mixture are one layer."""
    return {name: layer for name, layer in module.named_modules(remove_duplicate=False) if _kind(layer)}


def _kind(layer: torch.nn.Module) -> str | None:
    """The manifest's word for the kind of a layer; None for a layer that is not quantized.

    The linear layer inside PyTorch's attention is not quantized, because the attention only reads its weights.
    """
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return None
    if experts.is_experts(layer):
        return "linear"
    kind = next((kind for kind, layers in _LAYERS.items() if isinstance(layer, layers)), None)
    return "linear" if kind is None and plain_linear.is_turned(layer) is not None else kind


def _matches(name: str, layer: torch.nn.Module, entry: TorchaoEntry) -> bool:
    if _kind(layer) not in entry.layers or not any(fnmatchcase(name, pattern) for pattern in entry.modules):
        return False
    if experts.is_experts(layer) and entry.config not in _BITS:
        return False
    if entry.keeps and plain_linear.is_turned(layer) is not None:
        return False
    size = entry.group_size if entry.fitting else None
    return size is None or not any(row % size for row in _rows(layer))


def _rows(layer: torch.nn.Module) -> list[int]:
    """The sizes of the rows of a layer's weights."""
    mixture = experts.weights(layer) if experts.is_experts(layer) else {}
    row = 0 if plain_linear.is_turned(layer) else -1
    return [int(weight.shape[row]) for weight in (mixture.values() or (layer.weight,))]


def _config(entry: TorchaoEntry, path: DocumentPath) -> AOBaseConfig:
    if entry.from_code:
        config_path = (*path, "config")
        create = load_callable(entry.config, config_path)
        with wrap_user_error(config_path, f"`{entry.config}`"):
            config = create(**entry.kwargs)
        if not isinstance(config, AOBaseConfig):
            message = f"`{entry.config}` returned {type(config).__name__}, not a configuration of torchao"
            raise BuildError.at(config_path, message)
        return config
    bits, size = _BITS[entry.config], entry.group_size
    granularity = PerAxis(0) if size is None else PerGroup(size)
    scales = {} if entry.scales is None else {"intx_choose_qparams_algorithm": entry.scales}
    if "da" in entry.config:
        return Int8DynamicActivationIntxWeightConfig(weight_dtype=bits, weight_granularity=granularity, **scales)
    return IntxWeightOnlyConfig(weight_dtype=bits, granularity=granularity, **scales)


def _misfit(layer: torch.nn.Module, name: str, entry: TorchaoEntry, path: DocumentPath) -> Problem | None:
    """The problem if an entry cannot quantize a layer; otherwise None."""
    if "weight" not in layer._parameters and not experts.is_experts(layer):
        hint = "make it a parameter in the factory, as `remove_weight_norm` does, or exclude the layer from `modules`"
        return Problem(f"`{name}` computes its weight, so there is no weight to quantize", path, hint)
    size = entry.group_size
    row = next((row for row in _rows(layer) if size is not None and row % size), None)
    if row is not None:
        hint = (
            f"choose a size that divides {row}, exclude the layer from `modules`, or leave it out with `fitting: true`"
        )
        return Problem(f"`{name}` has rows of {row} weights, which is not a multiple of {size}", path, hint)
    if experts.is_experts(layer) and _BITS[entry.config] == torch.int4:
        odd = next((weight for weight in experts.weights(layer).values() if weight[0].numel() % 2), None)
        if odd is not None:
            message = f"`{name}` has experts of {odd[0].numel()} weights, which 4 bits cannot hold in pairs"
            return Problem(message, path, "exclude it from `modules`, or take 8 bits")
    return None
