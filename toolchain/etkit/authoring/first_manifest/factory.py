"""Writes the first manifest of a factory. The factory is called, because only its module says which inputs it takes."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.key.declared import Inputs
from etkit.authoring.first_manifest import weights_beside
from etkit.authoring.first_manifest.first import CALIBRATE, LINEAR, First, program_name

if TYPE_CHECKING:
    import torch

    from etbuild.manifest.sections import Method, Model

    _Input = tuple[tuple[int, ...], str]  # shape and dtype

_REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_KWARGS = """for example --kwargs '{"layers": 2}'"""
_TRIES = 60  # this many combinations of inputs are tried on a module


def of_factory(reference: str, kwargs: str, beside: Path) -> First:
    """The part of the first manifest about the module that a factory returns. Calls the factory.

    Args:
        reference: The factory, as `module:callable`.
        kwargs: Its keyword arguments, as a JSON object.
        beside: The directory of the manifest, where the sources are.

    Raises:
        InputError: The factory's module is not there.
        BuildError: The factory failed, or did not return a module that can be exported.
    """
    from etbuild.guard.reads import watched_reads
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.key.import_graph import used_sources
    from etbuild.plan.plan import from_manifest
    from etbuild.surroundings.library_output import stdout_for_results

    if not re.fullmatch(_REFERENCE, reference):
        raise InputError.of(f"--factory {reference}: expected MODULE:CALLABLE", "for example model:create")
    place, _, _ = reference.partition(":")
    name = program_name(beside.resolve().name if place in ("model", "models") else place.rpartition(".")[2])
    model: Model = {"factory": reference, "kwargs": _arguments(kwargs)}
    methods: dict[str, Method] = {"forward": {"example_inputs": [{"shape": [1]}]}}  # only because a plan needs a method
    plan = from_manifest({"name": name, "model": model, "methods": methods})
    inputs = Inputs(roots=[beside])
    used = used_sources(inputs, plan.export_plan)
    with stdout_for_results(), importable(used, [], watched_reads):
        from etbuild.model import module as modules

        root = modules.create(plan.model, StepContext(inputs))
        hint = LINEAR if _is_mostly_linear(root) else CALIBRATE
        lines, remarks = _methods_of(root, {_module(source) for source in used.sources})
        folders = dict.fromkeys([beside, *(path.parent for path in used.sources.values())])
        weights, more = weights_beside.find(root, list(folders), beside)
    srcs = [each for each in used.sources if (beside / each).is_file()]
    written = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in model.items() if value]
    remarks, own = [*remarks, *more], [] if weights is None else [weights]
    return First(name, written, lines, hint, remarks, srcs=srcs, checkpoint=weights, weights=own)


def _is_mostly_linear(root: torch.nn.Module) -> bool:
    """Whether more than half of the parameters of a module are those of linear layers, as in a Transformer."""
    import torch

    kinds = (torch.nn.Linear, torch.nn.MultiheadAttention)
    linear = [each for layer in root.modules() if isinstance(layer, kinds) for each in layer.parameters(recurse=False)]
    return bool(2 * sum(each.numel() for each in linear) > sum(each.numel() for each in root.parameters()))


def _module(source: str) -> str:
    """The module of a source, by its import path such as `models/net.py`."""
    return source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _arguments(text: str) -> dict[str, Any]:
    from etbuild.manifest import parameters

    try:
        found = json_file.parse(text.encode())
    except ValueError as error:  # this includes text that UTF-8 cannot encode
        raise InputError.of(f"--kwargs {text}: {error}", _KWARGS) from None
    if not isinstance(found, dict) or not all(key.isidentifier() for key in found):
        raise InputError.of(f"--kwargs {text}: not an object whose keys are names", _KWARGS)
    if any(parameters.references(found)):
        raise InputError.of(f"--kwargs {text}: in a manifest, this means a parameter", "write the manifest by hand")
    return found


def _methods_of(root: torch.nn.Module, modules: Collection[str]) -> tuple[list[str], list[str]]:
    """The lines of `methods` for a module, and what the user should know about them.

    Methods are `forward` and the public methods of the user's classes. If there are none, they are the module's
    children. A method is left out if no inputs that were tried fit it. If none fit any method, all are kept.

    Args:
        root: The module.
        modules: The names of the user's Python modules.
    """
    names = _public_methods(root, modules) or [name for name, _ in root.named_children()]
    found = {name: _inputs_of(root, getattr(root, name)) for name in names}
    kept = [name for name in names if found[name] is not None or name == "forward"] or names
    lines = []
    for name in kept:
        inputs = found[name]
        shown = "{shape: [1, 16]}" if inputs is None else _examples(inputs)
        guess = "   # change this" if inputs is None else "   # a guess" if inputs else ""
        lines += [f"{name}:", f"  example_inputs: [{shown}]{guess}"]
        lines += _batches(getattr(root, name), inputs) if inputs else []
    guessed, unknown = [name for name in kept if found[name]], [name for name in kept if found[name] is None]
    left = [name for name in names if name not in kept]
    remarks = {
        f"Check `example_inputs`: the shapes are a guess that fits {', '.join(guessed)}.": guessed,
        f"Change `example_inputs`: {', '.join(unknown)} did not take what was tried.": unknown,
        f"Left out: {', '.join(left)}, which did not take what was tried, or return no tensors.": left,
    }
    return lines, [remark for remark, about in remarks.items() if about]


def _public_methods(root: torch.nn.Module, modules: Collection[str]) -> list[str]:
    """`forward`, if the module has one, and the public methods of the user's classes. With a `forward`, public methods
    without inputs are left out: calling them may do something else, such as save a file."""
    import torch

    own: dict[str, Callable[..., Any]] = {}
    for kind in type(root).__mro__:
        if kind.__module__ in modules:
            own |= {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and name not in own}
    named = [name for name in own if not name.startswith("_") and not hasattr(torch.nn.Module, name)]
    if type(root).forward is torch.nn.Module.forward:
        return named
    return ["forward", *(name for name in named if len(inspect.signature(own[name]).parameters) > 1)]


def _inputs_of(root: torch.nn.Module, method: Callable[..., Any]) -> list[_Input] | None:
    """Inputs with which a method or a child returns tensors in eager PyTorch; None if no likely inputs do."""
    import torch

    child = method if isinstance(method, torch.nn.Module) else None
    with suppress(ValueError, TypeError):  # the method may have no signature
        parameters = inspect.signature(method if child is None else child.forward).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        count = sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)
        likely = list(dict.fromkeys(_likely(root if child is None else child)))
        with torch.no_grad():
            for shapes in itertools.islice(itertools.product(likely, repeat=count), _TRIES):
                with suppress(Exception):  # it is the user's code: any error says that the inputs do not fit
                    return list(shapes) if _results(method, shapes) else None
    return None


def _results(method: Callable[..., Any], inputs: Sequence[_Input]) -> list[torch.Tensor]:
    """The tensors that a method returns for zeros."""
    import torch
    from torch.utils._pytree import tree_leaves

    made = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in inputs]
    return [each for each in tree_leaves(method(*made)) if isinstance(each, torch.Tensor)]


def _batches(method: Callable[..., Any], inputs: Sequence[_Input]) -> list[str]:
    """Comments with what to write for a dynamic batch, if the method takes two examples at once in eager PyTorch and
    returns two results. The example input needs two, because torch.export treats a size of 1 as fixed."""
    import torch

    two = [((2, *shape[1:]), dtype) for shape, dtype in inputs]
    with torch.no_grad(), suppress(Exception):  # it is the user's code: any error says that the inputs do not fit
        if all(each.shape[:1] == (2,) for each in _results(method, two)):
            dims = ", ".join(
                f"[{', '.join(['{dim: batch, max: 8}', *['null'] * (len(shape) - 1)])}]" for shape, _ in two
            )
            return [
                "  # For 1 to 8 examples in a call, write this instead:",
                f"  # example_inputs: [{_examples(two)}]",
                f"  # dynamic_shapes: [{dims}]",
            ]
    return []


def _examples(inputs: Sequence[_Input]) -> str:
    """Inputs as the items of a list in YAML."""
    return ", ".join(
        f"{{shape: {list(shape)}{'' if dtype == 'float32' else f', dtype: {dtype}'}}}" for shape, dtype in inputs
    )


def _likely(root: torch.nn.Module) -> Iterator[_Input]:
    """Inputs that a module is likely to take, as shape and dtype: those of its first layers, then common ones."""
    import torch

    dtypes = (str(each.dtype).removeprefix("torch.") for each in root.parameters() if each.is_floating_point())
    real = next(dtypes, "float32")
    layers = [layer for layer in root.modules() if next(layer.children(), None) is None][:4]
    for layer in layers:
        if isinstance(layer, torch.nn.Embedding):
            yield from ((shape, "int64") for shape in ((1, 16), (1, 1), (1,)))
        elif isinstance(layer, torch.nn.Conv2d):
            yield from (((1, layer.in_channels, size, size), real) for size in (224, 64, 28))
        elif isinstance(layer, torch.nn.Conv1d):
            yield (1, layer.in_channels, 128), real
        elif isinstance(layer, (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)):
            yield (1, 16, layer.input_size), real
        elif isinstance(layer, torch.nn.Linear):
            yield (1, layer.in_features), real
            yield (1, 16, layer.in_features), real
    yield from (((1, 3, 224, 224), real), ((1, 16), real), ((1, 16), "int64"), ((1,), "int64"))
