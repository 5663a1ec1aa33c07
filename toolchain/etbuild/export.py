"""Export: the factory's module, its weights, and one `torch.export` program for each method."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs import Inputs
from etbuild.plan import Plan
from etbuild.sources import SourceFinder, blame, load_callable, source_line, summary


def create_module(plan: Plan, inputs: Inputs, finder: SourceFinder) -> torch.nn.Module:
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
        for key, tensor in _read_tensors(name, file, path).items():
            if key in state:
                problems.append(Problem(f"`{key}` is in `{owner[key]}` and in `{name}`", path))
            state[key], owner[key] = tensor, name
    expected = module.state_dict(keep_vars=True)
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


def _read_tensors(name: str, file: Path, path: DocumentPath) -> dict[str, torch.Tensor]:
    try:
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(file)  # type: ignore[no-any-return]
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors, pickle and zip each have errors of their own
        raise InputError([Problem(f"cannot read `{name}`: {summary(error)}", path)]) from error
    loaded = {"": loaded} if isinstance(loaded, torch.Tensor) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InputError([Problem(f"`{name}` does not hold a mapping of names to tensors", path)])
    return loaded


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name; tied ones under each of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def tag_parameters(plan: Plan, module: torch.nn.Module) -> dict[str, str]:
    """The tag of each parameter and buffer that belongs to one, by name.

    Raises:
        InputError: A pattern matches nothing, or a parameter belongs to two tags.
    """
    names = list(_tensors(module))
    tags: dict[str, str] = {}
    problems = []
    for tag, entry in sorted(plan["named_data"].items()):
        for index, pattern in enumerate(entry["parameters"]):
            path = ("named_data", tag, "parameters", index)
            matching = [name for name in names if fnmatchcase(name, pattern)]
            if not matching:
                problems.append(
                    Problem(f"the pattern `{pattern}` matches no parameter", path, did_you_mean(pattern, names))
                )
            for name in matching:
                if tags.setdefault(name, tag) != tag:
                    problems.append(
                        Problem(
                            f"`{pattern}` matches `{name}`, which belongs to the tag `{tags[name]}` already",
                            path,
                            "a parameter belongs to one tag",
                        )
                    )
                    break
    if problems:
        raise InputError(problems)
    return tags


def export_method(
    plan: Plan, name: str, module: torch.nn.Module, inputs: Inputs, finder: SourceFinder
) -> torch.export.ExportedProgram:
    """Exports one method of the module under its dynamic shapes. Parameters keep the names they have in the module.

    Raises:
        BuildError: Tracing failed. Names the place in the manifest and the line of the model's source.
    """
    method = plan["methods"][name]
    path: DocumentPath = ("methods", name)
    arguments = tuple(
        _example_input(example, (*path, "example_inputs", index), inputs, finder)
        for index, example in enumerate(method["example_inputs"])
    )
    shapes = _dynamic_shapes(method["dynamic_shapes"], arguments, (*path, "dynamic_shapes"))
    entry = _resolve(module, method["entry"], (*path, "entry"))
    with torch.no_grad(), _entry_as_forward(module, entry):
        # A wrong input is told apart from a wrong model by running the model as it is first.
        with blame((*path, "example_inputs"), f"running `{method['entry']}` on the example inputs", finder):
            _run_on_copies(module, arguments)
        printed = io.StringIO()  # torch prints the graph so far before it raises: the error says it shorter
        try:
            with contextlib.redirect_stderr(printed):
                program = torch.export.export(module, arguments, dynamic_shapes=shapes, strict=method["strict"])
        except Exception as error:  # torch.export has no common base of its errors
            raise _export_error(error, name, method, finder) from error
        sys.stderr.write(printed.getvalue())
    _check_ranges(program, shapes, (*path, "dynamic_shapes"))
    return program


def _run_on_copies(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """One eager call that leaves buffers, such as a KV cache, as they were."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        module(*(argument.clone() for argument in arguments))
    finally:
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])


def _example_input(example: dict[str, Any], path: DocumentPath, inputs: Inputs, finder: SourceFinder) -> torch.Tensor:
    if "factory" in example:
        factory = load_callable(example["factory"], finder, (*path, "factory"))
        with blame((*path, "factory"), f"`{example['factory']}`", finder):
            tensor = factory(**example["kwargs"])
        if not isinstance(tensor, torch.Tensor):
            raise BuildError(
                [
                    Problem(
                        f"`{example['factory']}` returned {type(tensor).__name__}, not a tensor",
                        (*path, "factory"),
                    )
                ]
            )
        return tensor.detach()
    if "file" in example:
        return _tensor_from_file(example, path, inputs)
    dtype = getattr(torch, example["dtype"])
    shape, fill = example["shape"], example["fill"]
    if fill == "arange":
        count = torch.Size(shape).numel()
        return torch.arange(count).reshape(shape).to(dtype)
    return torch.full(shape, {"zeros": 0, "ones": 1}.get(fill, fill), dtype=dtype)


def _tensor_from_file(example: dict[str, Any], path: DocumentPath, inputs: Inputs) -> torch.Tensor:
    file = inputs.find_data(example["file"], (*path, "file"))
    tensors = _read_tensors(example["file"], file, (*path, "file"))
    key = example.get("key", "")
    if key not in tensors:
        raise InputError(
            [
                Problem(
                    f"`{example['file']}` has no tensor `{key}`",
                    (*path, "key" if key else "file"),
                    did_you_mean(key, tensors),
                )
            ]
        )
    return tensors[key]


def _dynamic_shapes(
    shapes: list[list[Any] | None], arguments: tuple[torch.Tensor, ...], path: DocumentPath
) -> tuple[tuple[Any, ...] | None, ...] | None:
    """torch.export's `dynamic_shapes`; None where every size is fixed. Equal names become one `Dim`."""
    if not any(shapes):
        return None
    dims: dict[str, Any] = {}
    result: list[tuple[Any, ...] | None] = []
    for index, (entries, argument) in enumerate(zip(shapes, arguments, strict=True)):
        if entries is None:
            result.append(None)
            continue
        if len(entries) != argument.dim():
            raise InputError(
                [Problem(f"{len(entries)} entries for an input of {argument.dim()} dimensions", (*path, index))]
            )
        for entry in entries:
            if entry is not None:
                dims.setdefault(entry["dim"], torch.export.Dim(entry["dim"], min=entry["min"], max=entry["max"]))
        result.append(tuple(torch.export.Dim.STATIC if entry is None else dims[entry["dim"]] for entry in entries))
    return tuple(result)


def _resolve(module: torch.nn.Module, entry: str, path: DocumentPath) -> Callable[..., Any]:
    value: Any = module
    for part in entry.split("."):
        if not hasattr(value, part):
            known = [key for key in dir(type(value)) if not key.startswith("_") and not hasattr(torch.nn.Module, key)]
            children = [key for key, _ in value.named_children()] if isinstance(value, torch.nn.Module) else []
            raise InputError(
                [
                    Problem(
                        f"the module has no `{entry}`",
                        path,
                        did_you_mean(part, [*known, *children, "forward"]),
                    )
                ]
            )
        value = getattr(value, part)
    if not callable(value):
        raise InputError([Problem(f"`{entry}` is neither a method nor a submodule", path)])
    return value  # type: ignore[no-any-return]


@contextlib.contextmanager
def _entry_as_forward(module: torch.nn.Module, entry: Callable[..., Any]) -> Iterator[None]:
    """Lets `module(...)` call the entry. The module is exported whole, so that weights keep their names."""
    if entry == module.forward:
        yield
        return
    signature_of = entry.forward if isinstance(entry, torch.nn.Module) else entry

    @functools.wraps(signature_of)
    def forward(*args: Any) -> Any:
        return entry(*args)

    # A plain method keeps its own code, which strict export traces best; a submodule is called, so that its hooks run.
    module.forward = forward if isinstance(entry, torch.nn.Module) else entry
    try:
        yield
    finally:
        del module.forward


def _check_ranges(program: torch.export.ExportedProgram, shapes: Any, path: DocumentPath) -> None:
    """A dimension that tracing has fixed, or narrowed, would be refused at run time: fail now."""
    if shapes is None:
        return
    users = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for index, (name, dims) in enumerate(zip(users, shapes, strict=True)):
        for position, dim in enumerate(dims or ()):
            if dim is torch.export.Dim.STATIC:
                continue
            size = values[name].shape[position]
            here = (*path, index, position)
            if isinstance(size, int):
                raise BuildError(
                    [
                        Problem(
                            f"the model fixes the dimension `{dim.__name__}` to {size}",
                            here,
                            "write `null`, or change the model",
                        )
                    ]
                )
            bounds = program.range_constraints.get(size.node.expr)
            if bounds is not None and (int(bounds.lower) > dim.min or int(bounds.upper) < dim.max):
                raise BuildError(
                    [
                        Problem(
                            f"the model takes sizes {bounds.lower} to {bounds.upper} of `{dim.__name__}` only",
                            here,
                            f"write min: {bounds.lower}, max: {bounds.upper}, or change the model",
                        )
                    ]
                )


# By a word in torch.export's message or type: the part of the method that is to blame, and what to do.
_EXPORT_HINTS = (
    (
        "GuardOnDataDependent",
        "entry",
        "a branch depends on the values of a tensor: use torch.cond or torch.where, or torch._check",
    ),
    (
        "data-dependent",
        "entry",
        "a branch depends on the values of a tensor: use torch.cond or torch.where, or torch._check",
    ),
    ("Constraints violated", "dynamic_shapes", "the model fixes or narrows a dynamic dimension"),
    (
        "ConstraintViolation",
        "dynamic_shapes",
        "the example inputs or the model do not allow the declared range",
    ),
    ("dynamic_shapes", "dynamic_shapes", None),
    ("Unsupported", "entry", "strict export cannot trace this: change the model, or set `strict: false`"),
    ("graph break", "entry", "strict export cannot trace this: change the model, or set `strict: false`"),
)


def _export_error(error: Exception, name: str, method: dict[str, Any], finder: SourceFinder) -> BuildError:
    text = f"{type(error).__name__}: {error}"
    part, hint = next(((part, hint) for word, part, hint in _EXPORT_HINTS if word in text), ("entry", None))
    place = source_line(error, finder) or _quoted_line(str(error), finder)
    where = f" at {place}" if place else ""
    message = f"exporting `{method['entry']}` failed{where}: {_message(error)}"
    return BuildError([Problem(message, ("methods", name, part), hint)])


def _message(error: Exception) -> str:
    """torch's message without its own pointers to logs and settings; of violated constraints the suggestions too."""
    text = str(error)
    if "Constraints violated" in text:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " ".join(lines[:8])[:600]
    return summary(error)[:600]


def _quoted_line(text: str, finder: SourceFinder) -> str | None:
    """The last line of a declared source that the message itself quotes, as TorchDynamo's do."""
    found = None
    for line in text.splitlines():
        for name, path in finder.sources.items():
            marker = f'File "{path.absolute()}", line '
            if marker in line:
                number, _, function = line.split(marker, 1)[1].partition(", ")
                found = f"{name}:{number}" + (f", {function.strip()}" if function else "")
    return found
