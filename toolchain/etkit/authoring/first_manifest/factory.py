"""Writes the first manifest of a factory. The factory is called, because only its module says which inputs it takes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.key.declared import Inputs
from etkit.authoring.first_manifest import guess, weights_beside
from etkit.authoring.first_manifest.first import CALIBRATE, LINEAR, First, program_name
from etkit.authoring.first_manifest.given_inputs import GivenInput, of_given
from etkit.authoring.first_manifest.guess import results

if TYPE_CHECKING:
    import torch

    from etbuild.manifest.sections import Method, Model
    from etkit.authoring.first_manifest.guess import Input

_REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_KWARGS = """for example --kwargs '{"layers": 2}'"""


def of_factory(
    reference: str, kwargs: str, beside: Path, given: Sequence[GivenInput] = (), inputs: Inputs | None = None
) -> First:
    """The part of the first manifest about the module that a factory returns. Calls the factory.

    Args:
        reference: The factory, as `module:callable`.
        kwargs: Its keyword arguments, as a JSON object.
        beside: The directory of the manifest, where the sources are.
        given: The inputs of `forward`, which is then the only method. Without them, likely inputs are tried.
        inputs: What the factory may read; None for what is beside the manifest.

    Raises:
        InputError: The factory's module is not there, or `forward` does not take such inputs.
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
    inputs = inputs or Inputs(roots=[beside])
    used = used_sources(inputs, plan.export_plan)
    with stdout_for_results(), importable(used, [], watched_reads):
        from etbuild.model import module as modules

        root = modules.create(plan.model, StepContext(inputs))
        hint = LINEAR if _is_mostly_linear(root) else CALIBRATE
        own_modules = {_module(source) for source in used.sources}
        lines, remarks, guesses = (of_given(root, given), [], {}) if given else _methods_of(root, own_modules)
        folders = dict.fromkeys([beside, *(path.parent for path in used.sources.values())])
        weights, more = weights_beside.find(root, list(folders), beside)
    srcs = [each for each in used.sources if (beside / each).is_file()]
    written = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in model.items() if value]
    remarks, own = [*remarks, *more], [] if weights is None else [weights]
    return First(
        name,
        written,
        lines,
        hint,
        remarks,
        srcs=srcs,
        checkpoint=weights,
        weights=own,
        guesses=guesses,
        open_weights=[] if own else more,
    )


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


def _methods_of(root: torch.nn.Module, modules: Collection[str]) -> tuple[list[str], list[str], dict[str, str | None]]:
    """The lines of `methods` for a module, what the user should know about them, and the inputs of each method, None if
    no inputs that were tried fit it.

    Methods are `forward` and the public methods of the user's classes. If there are none, they are the module's
    children. A method is left out if no inputs that were tried fit it. If none fit any method, all are kept.

    Args:
        root: The module.
        modules: The names of the user's Python modules.
    """
    names = _public_methods(root, modules) or [name for name, _ in root.named_children()]
    guesses = {name: guess.inputs_of(root, getattr(root, name)) for name in names}
    found = {name: each.inputs for name, each in guesses.items()}
    kept = [name for name in names if found[name] is not None or name == "forward"] or names
    lines = []
    for name in kept:
        inputs = found[name]
        shown = "{shape: [1, 16]}" if inputs is None else _examples(inputs)
        comment = "   # change this" if inputs is None else "   # a guess" if inputs else ""
        lines += [f"{name}:", f"  example_inputs: [{shown}]{comment}"]
        lines += _batches(getattr(root, name), inputs) if inputs else []
    guessed, unknown = [name for name in kept if found[name]], [name for name in kept if found[name] is None]
    left = [name for name in names if name not in kept]
    remarks = {
        f"Check `example_inputs`: the shapes are a guess that fits {', '.join(guessed)}.": guessed,
        f"Change `example_inputs`: {', '.join(unknown)} did not take what was tried.": unknown,
        f"Left out: {', '.join(left)}, which did not take what was tried, or return no tensors.": left,
    }
    said = [f"{name}: {each.said}" for name, each in guesses.items() if each.inputs is None and each.said]
    guessed_inputs = {name: None if (inputs := found[name]) is None else _examples(inputs) for name in kept}
    return lines, [*(remark for remark, about in remarks.items() if about), *said], guessed_inputs


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


def _batches(method: Callable[..., Any], inputs: Sequence[Input]) -> list[str]:
    """Comments with what to write for a dynamic batch, if the method takes two examples at once in eager PyTorch and
    returns two results. The example input needs two, because torch.export treats a size of 1 as fixed."""
    import torch

    two = [((2, *shape[1:]), dtype) for shape, dtype in inputs]
    with torch.no_grad(), suppress(Exception):  # it is the user's code: any error says that the inputs do not fit
        if all(each.shape[:1] == (2,) for each in results(method, two)):
            dims = ", ".join(
                f"[{', '.join(['{dim: batch, max: 8}', *['null'] * (len(shape) - 1)])}]" for shape, _ in two
            )
            return [
                "  # For 1 to 8 examples in a call, write this instead:",
                f"  # example_inputs: [{_examples(two)}]",
                f"  # dynamic_shapes: [{dims}]",
            ]
    return []


def _examples(inputs: Sequence[Input]) -> str:
    """Inputs as the items of a list in YAML."""
    return ", ".join(
        f"{{shape: {list(shape)}{'' if dtype == 'float32' else f', dtype: {dtype}'}}}" for shape, dtype in inputs
    )
