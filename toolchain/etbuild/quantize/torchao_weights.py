"""Quantizes the weights of layers with torchao, before a module is exported."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

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

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.packed import kept
from etbuild.model.packed.kept import Kept
from etbuild.plan.parts import TorchaoEntry
from etbuild.quantize import experts, plain_linear
from etbuild.quantize.by_rows import by_rows
from etbuild.quantize.deferred import CannotDefer, Deferred
from etbuild.quantize.originals import Filter, Originals
from etbuild.quantize.packed_weights import KeepIntegers

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Change = tuple[AOBaseConfig, Filter | None, DocumentPath]
_LAYERS = {"linear": torch.nn.Linear, "embedding": torch.nn.Embedding}
_BITS = {"8da4w": torch.int4, "8da8w": torch.int8, "int4": torch.int4, "int8": torch.int8}


class Quantized:
    """A module whose weights can be switched to quantized ones and back.

    It changes the module's own layers, so that all code that calls them, such as a function from the factory, calls the
    quantized layers. It copies no weights.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        changes: Sequence[Change],
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
            deferred: Gets what is computed when the content of the weights is known. None: it is known.

        Raises:
            BuildError: torchao refuses a layer.
            CannotDefer: Its configurations need the content of the weights.
        """
        self._module = module
        self._path = path
        before, self._originals = _State(module), Originals(module, free and deferred is None)
        try:
            with by_rows() if deferred is None else deferred.quantizing(module):
                _quantize(module, changes, self._originals)
            plain_linear.choose(module)
            # ExecuTorch's backends expect plain tensors. XNNPACK would read torchao's tensor subclasses as fp32, and
            # the program would silently compute wrong results.
            unwrap_tensor_subclass(module)
            self._state = _State(module)
            self._originals.leave()
        finally:
            before.restore()

    @contextmanager
    def __call__(self) -> Iterator[torch.nn.Module]:
        """Within this context, the module has quantized weights."""
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
            BuildError: It reads one, which would silently stay in fp32.
        """
        hint = "read it from its layer on every call: some code keeps a reference to the old tensor"
        problems = [
            Problem(f"`{name}` is quantized, but the method reads the tensor from before", self._path, hint)
            for name in self._originals.read_by(program)
        ]
        if problems:
            raise BuildError(problems)


class _State:
    """The recorded classes and attributes of a module's layers, which torchao may change. It does not copy tensors."""

    _CHANGED_IN_PLACE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")

    def __init__(self, module: torch.nn.Module) -> None:
        self._layers = [(layer, type(layer), self._held(vars(layer))) for layer in module.modules()]

    def restore(self) -> None:
        """Restores the recorded classes and attributes."""
        for layer, kind, held in self._layers:
            if type(layer) is not kind:
                layer.__class__ = kind
            vars(layer).clear()
            vars(layer).update(self._held(held))

    @classmethod
    def _held(cls, held: dict[str, object]) -> dict[str, object]:
        return {name: copy.copy(value) if name in cls._CHANGED_IN_PLACE else value for name, value in held.items()}


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
        called: The layers of the modules that the methods call. Of the others, those that cannot be quantized are left
            as they are: the factory may have made them for other methods.
        deferred: Gets what is computed when the content of the weights is known. None: it is known.

    Raises:
        CannotDefer: The configurations need the content of the weights.
        InputError: An entry matches no layer, or a layer that it cannot quantize.
        BuildError: torchao refuses a layer, or a configuration cannot be made.
    """
    layers = _layers_by_entry(module, entries, path)
    changes: list[Change] = []
    for index, entry in enumerate(entries):
        entry_path = (*path, index)
        misfits = {name: _misfit(layer, name, entry, entry_path) for name, layer in layers[index].items()}
        chosen = [layer for name, layer in layers[index].items() if misfits[name] is None]
        wrong = [found for name, found in misfits.items() if found and (not chosen or layers[index][name] in called)]
        if wrong:
            raise InputError(wrong)
        names = {id(layer): f"{name}.weight" for name, layer in layers[index].items()}
        keep = KeepIntegers(kept.of(module).integers, names) if entry.keeps else None
        path_of_config = (*entry_path, "config")
        mixtures = [layer for layer in chosen if experts.is_experts(layer)]
        others = [layer for layer in chosen if not experts.is_experts(layer)]
        if mixtures and deferred is not None:
            raise CannotDefer("the experts of a mixture are quantized when their content is known")
        if mixtures:
            of_experts = experts.QuantizeExperts(_BITS[entry.config], entry.group_size, entry.scales)
            changes.append((of_experts, _once(mixtures), path_of_config))
        if others or not mixtures:
            changes.append((keep or _config(entry, entry_path), _once(others), path_of_config))
    return Quantized(module, changes, path, free, deferred)


def _quantize(module: torch.nn.Module, changes: Sequence[Change], originals: Originals) -> None:
    for config, filter_fn, path in changes:
        # Without a filter, torchao quantizes linear layers.
        chosen = () if filter_fn is None else (originals.watched(filter_fn),)
        with wrap_user_error(path, f"quantizing with {type(config).__name__}"):
            quantize_(module, config, *chosen)
        originals.free()


def _once(layers: Iterable[torch.nn.Module]) -> Filter:
    """A filter for torchao that selects each layer once.

    torchao visits a layer with two names twice, and would quantize it a second time.
    """
    waiting = {id(layer) for layer in layers}

    def chosen(layer: torch.nn.Module, name: str) -> bool:
        is_waiting = id(layer) in waiting
        waiting.discard(id(layer))
        return is_waiting

    return chosen


def _layers_by_entry(
    module: torch.nn.Module, entries: Sequence[TorchaoEntry], path: DocumentPath
) -> list[dict[str, torch.nn.Module]]:
    """The layers that each entry quantizes, by name. Raises InputError if an entry matches no layer.

    A layer with several names is listed once, under the first of its names that an entry matches. If several entries
    match that name, the first entry quantizes the layer.
    """
    layers = _layers(module)
    matching = [[name for name in layers if _matches(name, layers[name], entry)] for entry in entries]
    held = kept.of(module).integers
    matching = [
        [name for name in names if not entry.keeps or f"{name}.weight" in held]
        for names, entry in zip(matching, entries, strict=True)
    ]
    _check_matching(matching, list(layers), entries, path)
    first = {name: index for index, names in reversed(list(enumerate(matching))) for name in names}
    by_entry: list[dict[str, torch.nn.Module]] = [{} for _ in entries]
    taken: set[int] = set()
    for name, layer in layers.items():
        if name in first and id(layer) not in taken:
            by_entry[first[name]][name] = layer
            taken.add(id(layer))
    return by_entry


def _check_matching(
    matching: list[list[str]], known: list[str], entries: Sequence[TorchaoEntry], path: DocumentPath
) -> None:
    problems = [
        Problem(
            f"no {' or '.join(entry.layers)} layer matches {', '.join(entry.modules)}"
            + (f" and has rows of a multiple of {entry.group_size} weights" if entry.fitting else ""),
            (*path, index, "modules"),
            did_you_mean(entry.modules[0], known) if known else "the module has no such layers",
        )
        for index, (entry, names) in enumerate(zip(entries, matching, strict=True))
        if not names and not entry.keeps
    ]
    if problems:
        raise InputError(problems)


def packed_weights(module: torch.nn.Module, methods: Sequence[Sequence[TorchaoEntry]]) -> Kept:
    """The packed weights of a module that methods keep as integers.

    Args:
        module: The module.
        methods: For each method, the entries of `torchao`.
    """
    layers = _layers(module)

    def is_kept(name: str, entries: Sequence[TorchaoEntry]) -> bool:
        first = next((entry for entry in entries if _matches(name, layers[name], entry)), None)
        return first is not None and first.keeps

    by_method = [{name for name in layers if is_kept(name, entries)} for entries in methods]
    kinds = {f"{name}.weight": str(_kind(layers[name])) for name in layers if any(name in each for each in by_method)}
    every = set.intersection(*by_method) if by_method else set()
    return Kept(kinds, {f"{name}.weight" for name in every})


def _layers(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The layers that can be quantized, by all their names. The experts of a mixture are one layer."""
    return {name: layer for name, layer in module.named_modules(remove_duplicate=False) if _kind(layer)}


def _kind(layer: torch.nn.Module) -> str | None:
    """The manifest's word for the kind of a layer; None: it is not quantized.

    The linear layer inside PyTorch's attention is not quantized: the attention reads its weights and never calls it.
    """
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return None
    if experts.is_experts(layer):
        return "linear"
    return next((kind for kind, layers in _LAYERS.items() if isinstance(layer, layers)), None)


def _matches(name: str, layer: torch.nn.Module, entry: TorchaoEntry) -> bool:
    if _kind(layer) not in entry.layers or not any(fnmatchcase(name, pattern) for pattern in entry.modules):
        return False
    if experts.is_experts(layer) and entry.config not in _BITS:
        return False
    size = entry.group_size if entry.fitting else None
    return size is None or not any(row % size for row in _rows(layer))


def _rows(layer: torch.nn.Module) -> list[int]:
    """The sizes of the rows of a layer's weights."""
    mixture = experts.weights(layer) if experts.is_experts(layer) else {}
    return [int(weight.shape[-1]) for weight in (mixture.values() or (layer.weight,))]


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
    """Why an entry cannot quantize a layer; None if it can."""
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
        odd = next((one for one in experts.weights(layer).values() if one[0].numel() % 2), None)
        if odd is not None:
            message = f"`{name}` has experts of {odd[0].numel()} weights, which 4 bits cannot hold in pairs"
            return Problem(message, path, "exclude it from `modules`, or take 8 bits")
    return None
