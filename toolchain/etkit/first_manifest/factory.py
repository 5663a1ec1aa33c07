"""Writes the first manifest of a factory. The factory is called, because only its module says which inputs it takes."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.inputs.declared import Inputs
from etkit.first_manifest import weights_beside
from etkit.first_manifest.first import CALIBRATE, First, program_name

if TYPE_CHECKING:
    import torch

    from etbuild.manifest.sections import Method, Model

_REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_KWARGS = """for example --kwargs '{"layers": 2}'"""
_TRIES = 60  # this many combinations of inputs are tried on a module


def of_factory(reference: str, kwargs: str, beside: Path) -> First:
    """What the first manifest says about the module that a factory returns. Calls the factory.

    Args:
        reference: The factory, as `module:callable`.
        kwargs: Its keyword arguments, as a JSON object.
        beside: The directory of the manifest, where the sources are.

    Raises:
        InputError: The factory's module is not there.
        BuildError: The factory failed, or did not return a module that can be exported.
    """
    from etbuild.inputs.import_graph import used_sources
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.plan.plan import from_manifest
    from etbuild.processes.library_output import stdout_for_results

    if not re.fullmatch(_REFERENCE, reference):
        raise InputError.of(f"--factory {reference}: expected MODULE:CALLABLE", "for example model:create")
    place, _, _ = reference.partition(":")
    name = program_name(beside.resolve().name if place in ("model", "models") else place.rpartition(".")[2])
    model: Model = {"factory": reference, "kwargs": _arguments(kwargs)}
    methods: dict[str, Method] = {"forward": {"example_inputs": [{"shape": [1]}]}}  # not used: the plan needs a method
    plan = from_manifest({"name": name, "model": model, "methods": methods})
    inputs = Inputs(roots=[beside])
    used = used_sources(inputs, plan.export_plan)
    with stdout_for_results(), importable(used, []) as finder:
        from etbuild.model import module as modules

        root = modules.create(plan.model, StepContext(inputs, finder))
        lines, remarks = _methods_of(root, {_module(source) for source in used.sources})
        folders = dict.fromkeys([beside, *(path.parent for path in used.sources.values())])
        weights, more = weights_beside.find(root, list(folders), beside)
    srcs = [each for each in used.sources if (beside / each).is_file()]
    written = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in model.items() if value]
    remarks, own = [*remarks, *more], [] if weights is None else [weights]
    return First(name, written, lines, CALIBRATE, remarks, srcs=srcs, checkpoint=weights, weights=own)


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

    Methods are `forward` and the public methods of the user's classes; of a module without any, its children. A method
    is left out if nothing that was tried fits, unless the others are left out too.

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
        shown = ", ".join(["{shape: [1, 16]}"] if inputs is None else inputs)
        guess = "   # change this" if inputs is None else "   # a guess" if inputs else ""
        lines += [f"{name}:", f"  example_inputs: [{shown}]{guess}"]
    guessed, unknown = [name for name in kept if found[name]], [name for name in kept if found[name] is None]
    left = [name for name in names if name not in kept]
    remarks = {
        f"Check `example_inputs`: they are the first that {', '.join(guessed)} took.": guessed,
        f"Change `example_inputs`: {', '.join(unknown)} did not take what was tried.": unknown,
        f"Left out: {', '.join(left)}, which did not take what was tried, or return no tensors.": left,
    }
    return lines, [remark for remark, about in remarks.items() if about]


def _public_methods(root: torch.nn.Module, modules: Collection[str]) -> list[str]:
    """`forward`, if the module has one, and the public methods of the user's classes. With a `forward`, those without
    inputs are not among them: to call them may do something else, such as save a file."""
    import torch

    own: dict[str, Callable[..., Any]] = {}
    for kind in type(root).__mro__:
        if kind.__module__ in modules:
            own |= {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and name not in own}
    named = [name for name in own if not name.startswith("_") and not hasattr(torch.nn.Module, name)]
    if type(root).forward is torch.nn.Module.forward:
        return named
    return ["forward", *(name for name in named if len(inspect.signature(own[name]).parameters) > 1)]


def _inputs_of(root: torch.nn.Module, method: Callable[..., Any]) -> list[str] | None:
    """Inputs that a method or a child takes in eager PyTorch, in YAML; None if none of the likely ones fit, or if it
    returns no tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    child = method if isinstance(method, torch.nn.Module) else None
    with suppress(ValueError, TypeError):  # a method without a signature
        parameters = inspect.signature(method if child is None else child.forward).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        count = sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)
        likely = list(dict.fromkeys(_likely(root if child is None else child)))
        with torch.no_grad():
            for shapes in itertools.islice(itertools.product(likely, repeat=count), _TRIES):
                made = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in shapes]
                with suppress(Exception):  # it is the user's code: any error says that the inputs do not fit
                    results = tree_leaves(method(*made))
                    if not any(isinstance(each, torch.Tensor) for each in results):
                        return None
                    return [_yaml(shape, dtype) for shape, dtype in shapes]
    return None


def _yaml(shape: tuple[int, ...], dtype: str) -> str:
    return f"{{shape: {list(shape)}{'' if dtype == 'float32' else f', dtype: {dtype}'}}}"


def _likely(root: torch.nn.Module) -> Iterator[tuple[tuple[int, ...], str]]:
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
