"""The module: what the factory returns, with its weights, and the tag of each of them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch.nn.parameter import is_lazy

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs import Inputs
from etbuild.plan import Plan
from etbuild.sources import SourceFinder, blame, load_callable, summary


def create(plan: Plan, inputs: Inputs, finder: SourceFinder) -> torch.nn.Module:
    """The module, in `eval()` mode, with its weights loaded and contiguous, and no gradients.

    Raises:
        InputError: The weights do not fit the module: each missing, unexpected or mis-shaped parameter is named.
        BuildError: The factory failed, or returned something else.
    """
    model = plan["model"]
    path = ("model", "factory")
    factory = load_callable(model["factory"], finder, path)
    torch.manual_seed(model["seed"])
    with blame(path, f"`{model['factory']}`", finder):
        module = factory(**model["kwargs"])
    if not isinstance(module, torch.nn.Module):
        raise BuildError(
            [Problem(f"`{model['factory']}` returned {type(module).__name__}, not a torch.nn.Module", path)]
        )
    lazy = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        hint = "run the module once in the factory, or give its layers their sizes"
        raise BuildError([Problem(f"`{lazy[0]}` has no shape yet", path, hint)])
    module.eval()
    if model["weights"]:
        _load_weights(module, {name: inputs.find_data(name, ("model", "weights")) for name in model["weights"]})
    meta = [name for name, tensor in _tensors(module).items() if tensor.is_meta]
    if meta:
        hint = "make the module on the CPU, or name its weights in `model.weights`"
        raise BuildError([Problem(f"`{meta[0]}` is on the meta device and has no content", path, hint)])
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # a mutable buffer beside a parameter that requires grad cannot be lowered
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.contiguous()  # XNNPACK refuses other layouts of weights
    return module


def _load_weights(module: torch.nn.Module, files: dict[str, Path]) -> None:
    path: DocumentPath = ("model", "weights")
    state: dict[str, torch.Tensor] = {}
    owner: dict[str, str] = {}
    problems = []
    for name, file in files.items():
        for key, tensor in read_tensors(name, file, path).items():
            if key in state:
                problems.append(Problem(f"`{key}` is in `{owner[key]}` and in `{name}`", path))
            state[key], owner[key] = tensor, name
    # What `get_extra_state` adds is no tensor, and safetensors cannot hold it.
    expected = {key: x for key, x in module.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    # Of tied parameters one name is enough, as in the files that safetensors writes.
    given = {id(expected[key]) for key in state.keys() & expected.keys()}
    state |= {key: expected[key].detach() for key in expected.keys() - state.keys() if id(expected[key]) in given}
    for key in sorted(expected.keys() - state.keys()):
        problems.append(Problem(f"parameter `{key}` {_form(expected[key])} is missing in {_names(files)}", path))
    for key in sorted(state.keys() - expected.keys()):
        hint = did_you_mean(key, expected.keys() - state.keys()) if expected.keys() - state.keys() else None
        problems.append(Problem(f"`{owner[key]}` has `{key}`, which is no parameter of the module", path, hint))
    for key in sorted(owner.keys() & expected.keys()):
        if state[key].shape != expected[key].shape or state[key].dtype != expected[key].dtype:
            problems.append(
                Problem(
                    f"parameter `{key}` is {_form(expected[key])} in the module and "
                    f"{_form(state[key])} in `{owner[key]}`",
                    path,
                )
            )
    if problems:
        raise InputError(problems)
    module.load_state_dict({key: state[key] for key in owner}, strict=False)  # strict is what was checked above


def _names(files: dict[str, Path]) -> str:
    return " and ".join(f"`{name}`" for name in files)


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def read_tensors(name: str, file: Path, path: DocumentPath) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors or torch.save file, by name; a file that holds one tensor alone has it under "".

    Args:
        name: What the manifest calls the file.
        file: The file.
        path: Where the manifest says so.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    try:
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(file)  # type: ignore[no-any-return]
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors, pickle and zip each have errors of their own
        raise InputError([Problem(f"cannot read `{name}`: {summary(error)}", path)]) from error
    loaded = {"": loaded} if isinstance(loaded, torch.Tensor) else loaded
    if not isinstance(loaded, dict):
        raise InputError([Problem(f"`{name}` does not hold a mapping of names to tensors", path)])
    others = [key for key, value in loaded.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise InputError(
            [Problem(f"`{others[0]}` in `{name}` is no tensor", path, "save the module's state dict alone")]
        )
    return loaded


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name; tied ones under each of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def tags(plan: Plan, module: torch.nn.Module) -> dict[str, str]:
    """The tag of each parameter and buffer that belongs to one, by name.

    Raises:
        InputError: A pattern matches nothing, or a parameter belongs to two tags.
    """
    tensors = _tensors(module)
    names = list(tensors)
    aliases: dict[int, list[str]] = {}  # of tied weights: a tag of one name is the tag of all
    for name, tensor in tensors.items():
        aliases.setdefault(id(tensor), []).append(name)
    found: dict[str, str] = {}
    problems = []
    for tag, entry in sorted(plan["named_data"].items()):
        for index, pattern in enumerate(entry["parameters"]):
            path = ("named_data", tag, "parameters", index)
            matching = [alias for name in names if fnmatchcase(name, pattern) for alias in aliases[id(tensors[name])]]
            if not matching:
                problems.append(
                    Problem(f"the pattern `{pattern}` matches no parameter", path, did_you_mean(pattern, names))
                )
            for name in matching:
                if found.setdefault(name, tag) != tag:
                    problems.append(
                        Problem(
                            f"`{pattern}` matches `{name}`, which belongs to the tag `{found[name]}` already",
                            path,
                            "a parameter belongs to one tag",
                        )
                    )
                    break
    if problems:
        raise InputError(problems)
    return found
