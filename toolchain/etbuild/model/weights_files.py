"""Describes the parameters and buffers of a module, reads their content from weights files, and finds their tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean, unknown
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.declared import Inputs
from etbuild.model.module import named_tensors
from etbuild.plan.plan import MethodPlan, weights_names

_FEW = 3  # an error with at most this many unknown names suggests a known name for each
_SHARD = "#"  # tags in a manifest cannot contain this character


@dataclass(frozen=True)
class TensorFacts:
    """Facts about a parameter or buffer, without its content.

    Attributes:
        name: Its name in the module.
        dtype: PyTorch's name of its dtype, such as `float32`.
        shape: Its sizes.
        parameter: Whether it is a parameter; otherwise it is a buffer.
        same_as: The first name of the same tensor if it has several and this is another one; otherwise None.
        in_weights: Whether its content comes from weights files; otherwise the factory made it.
        also: Other names by which a pattern finds it, such as the name of the parameter that it was quantized from.
    """

    name: str
    dtype: str
    shape: list[int]
    parameter: bool
    same_as: str | None
    in_weights: bool
    also: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"

    @property
    def nbytes(self) -> int:
        """The size of its content in bytes."""
        return int(torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize)

    def facts(self) -> dict[str, Any]:
        """The facts as JSON data. The constructor accepts them as keyword arguments."""
        return asdict(self)


def describe(module: torch.nn.Module, weights: bool) -> list[TensorFacts]:
    """Describes the parameters and buffers of a module, in the order of the module.

    Args:
        module: The module.
        weights: Whether the content of its state dict comes from weights files.
    """
    loaded = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()} if weights else set()
    first: dict[int, str] = {}
    return [_facts(name, tensor, first, id(tensor) in loaded) for name, tensor in named_tensors(module).items()]


def describe_state(module: torch.nn.Module) -> list[TensorFacts]:
    """Describes the tensors that weights files must contain for `load_state_dict`, by the names of the state dict."""
    # Entries of `get_extra_state` are not tensors, and safetensors cannot hold them.
    stored = {name: x for name, x in module.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    first: dict[int, str] = {}
    return [_facts(name, tensor, first, True) for name, tensor in stored.items()]


def _facts(name: str, tensor: torch.Tensor, first: dict[int, str], in_weights: bool) -> TensorFacts:
    """The facts about a tensor.

    Args:
        name: Its name.
        tensor: The tensor.
        first: The first name of each tensor by the tensor's id. A new tensor is added.
        in_weights: Whether its content comes from weights files.
    """
    same_as = first.setdefault(id(tensor), name)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return TensorFacts(
        name, dtype_name(tensor), list(tensor.shape), is_parameter, None if same_as == name else same_as, in_weights
    )


def dtype_name(tensor: torch.Tensor) -> str:
    """PyTorch's name of a tensor's dtype, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def form(tensor: torch.Tensor) -> str:
    """The dtype and shape of a tensor, as errors show them: `float32[2, 3]`."""
    return f"{dtype_name(tensor)}{list(tensor.shape)}"


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits."""
    return one is other or (form(one) == form(other) and torch.equal(_bits(one), _bits(other)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def read_weights(weights: Sequence[str], inputs: Inputs, facts: list[TensorFacts]) -> dict[str, torch.Tensor]:
    """Reads the tensors of weights files.

    Args:
        weights: The names of the files in the manifest.
        inputs: The declared inputs, which contain the files.
        facts: Facts about the module's parameters and buffers.

    Returns:
        The tensors by their names in the module. A tied tensor is listed under each of its names.

    Raises:
        InputError: The files cannot be read, or do not fit the module. The error names each parameter that is missing
            or unexpected, or has another shape or dtype.
    """
    path: DocumentPath = ("model", "weights")
    state: dict[str, torch.Tensor] = {}
    owner: dict[str, str] = {}
    problems = []
    files = {name: inputs.find_data(name, place) for name, place in weights_names(weights).items()}
    for name, file in files.items():
        for key, tensor in read_tensors(name, file, path).items():
            if key in state:
                message = f"`{key}` is in `{owner[key]}` and in `{name}`"
                problems.append(Problem(message, path, "keep it in one of the files"))
            state[key], owner[key] = tensor, name
    expected = {entry.name: entry for entry in facts if entry.in_weights}
    given = {_first_name(expected[key]): key for key in reversed(list(state)) if key in expected}
    # One name of a tied parameter is enough, as in the files that safetensors writes.
    missing = [key for key in sorted(expected) if _first_name(expected[key]) not in given]
    extra = sorted(state.keys() - expected.keys())
    renamed = _prefix_hint(missing, extra)
    for key in missing:
        message = f"parameter `{key}` {expected[key]} is missing in {' and '.join(f'`{name}`' for name in files)}"
        problems.append(Problem(message, path, renamed))
    for key, nearest in unknown(extra, expected.keys() - state.keys()):
        message = f"`{owner[key]}` has `{key}`, which is not a parameter or buffer of the module"
        other = nearest if len(extra) <= _FEW else "remove them from the file, or change the model"
        problems.append(Problem(message, path, renamed or other))
    problems += _misfits(state, owner, expected, given)
    if problems:
        raise InputError(problems)
    return {key: state[given[_first_name(entry)]] for key, entry in expected.items()}


def _prefix_hint(missing: list[str], extra: list[str]) -> str | None:
    """A hint if the names in the file and in the module differ by a prefix, such as `model.`; None: they do not.

    Args:
        missing: The names that the file does not have.
        extra: The names that the module does not have.
    """
    if not missing or not extra:
        return None
    for names, others, short, long in ((missing, extra, "module", "file"), (extra, missing, "file", "module")):
        prefix = next((name.removesuffix(names[0]) for name in others if name.endswith(f".{names[0]}")), None)
        if prefix is not None and 2 * len({f"{prefix}{name}" for name in names} & set(others)) >= len(names):
            return (
                f"the names in the {long} start with `{prefix}`, the names in the {short} do not: rename the "
                "tensors of the file, or change the factory"
            )
    return None


def _misfits(
    state: dict[str, torch.Tensor], owner: dict[str, str], expected: dict[str, TensorFacts], given: dict[str, str]
) -> list[Problem]:
    path: DocumentPath = ("model", "weights")
    problems = []
    for key in sorted(state.keys() & expected.keys()):
        found, wanted = state[key], expected[key]
        twin = given[_first_name(wanted)]
        if list(found.shape) != wanted.shape:
            message = f"parameter `{key}` is {wanted} in the module and {form(found)} in `{owner[key]}`"
            problems.append(Problem(message, path, "is the file from the same configuration of the model?"))
        elif dtype_name(found) != wanted.dtype:
            message = f"parameter `{key}` is {wanted.dtype} in the module and {dtype_name(found)} in `{owner[key]}`"
            hint = (
                f"convert the tensors of the file with `tensor.to(torch.{wanted.dtype})`, or return a "
                f"{dtype_name(found)} module from the factory: `module.to(torch.{dtype_name(found)})`"
            )
            problems.append(Problem(message, path, hint))
        elif twin != key and state[twin].shape == state[key].shape and not torch.equal(state[twin], state[key]):
            message = f"`{twin}` and `{key}` are one tied parameter of the module, but they differ in `{owner[key]}`"
            problems.append(Problem(message, path, "keep one of the two in the file"))
    return problems


def _first_name(entry: TensorFacts) -> str:
    return entry.same_as or entry.name


def read_tensors(name: str, file: Path, path: DocumentPath) -> dict[str, torch.Tensor]:
    """Reads the tensors of a safetensors or torch.save file.

    Args:
        name: The file's name in the manifest.
        file: The file.
        path: The document path of that name.

    Returns:
        The tensors by name. If a torch.save file is a tensor and not a mapping, its name is "".

    Raises:
        InputError: The file cannot be read, or contains something other than tensors.
    """
    with wrap_library_errors(InputError, path, f"cannot read `{name}`"):
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(file)  # type: ignore[no-any-return]
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    loaded = {"": loaded} if isinstance(loaded, torch.Tensor) else loaded
    if not isinstance(loaded, dict):
        raise InputError.at(path, f"`{name}` is not a mapping of names to tensors")
    others = [key for key, value in loaded.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise InputError.at(
            path, f"`{others[0]}` in `{name}` is not a tensor", "save only the state dict of the module"
        )
    return loaded


def tags(lower_plan: MethodPlan, facts: Iterable[TensorFacts]) -> dict[str, str]:
    """Finds the tag of each parameter and buffer.

    Args:
        lower_plan: The lower plan, which has the patterns of each tag.
        facts: Facts about the module's parameters and buffers.

    Returns:
        The tag of each tensor that has one, by the tensor's name.

    Raises:
        InputError: A pattern matches nothing, or a parameter belongs to two tags.
    """
    entries = {entry.name: entry for entry in facts}
    names = list(entries)
    aliases: dict[str, list[str]] = {}  # all names of tied weights get the same tag
    for entry in entries.values():
        aliases.setdefault(_first_name(entry), []).append(entry.name)
    found: dict[str, str] = {}
    problems = []
    for tag, content in sorted(lower_plan.named_data.items()):
        for index, pattern in enumerate(content.parameters):
            path = ("named_data", tag, "parameters", index)
            matching = [
                alias for n in names if _matches(entries[n], pattern) for alias in aliases[_first_name(entries[n])]
            ]
            if not matching:
                problems.append(
                    Problem(f"the pattern `{pattern}` matches no parameter", path, did_you_mean(pattern, names))
                )
            for name in matching:
                if found.setdefault(name, tag) != tag:
                    problems.append(
                        Problem(
                            f"`{pattern}` matches `{name}`, which already belongs to the tag `{found[name]}`",
                            path,
                            "change the patterns so that each parameter has one tag",
                        )
                    )
                    break
    if problems:
        raise InputError(problems)
    return found


def _matches(entry: TensorFacts, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (entry.name, *entry.also))


def shards(lower_plan: MethodPlan, facts: Iterable[TensorFacts], tags: dict[str, str]) -> dict[str, str]:
    """Assigns each tagged parameter and buffer to a shard. A tag that is not split has one shard with the tag's name.

    Weights fill shards in the order of the module, according to their sizes. The result does not depend on their
    content or on the graph, so that a changed weight changes only its own shard, and another method changes none.

    Args:
        lower_plan: The lower plan, which has the shard size of each tag in bytes.
        facts: Facts about the module's parameters and buffers, in the order of the module.
        tags: The tag of each tensor that has one, by the tensor's name.

    Returns:
        The shard of each tagged tensor, by the tensor's name.
    """
    found: dict[str, str] = {}
    filled: dict[str, tuple[int, int]] = {}  # for each tag: the number of its last shard, and the bytes in it
    for entry in facts:
        if entry.name not in tags:
            continue
        tag = tags[entry.name]
        limit = lower_plan.named_data[tag].shard_size
        if limit is None:
            found[entry.name] = tag
        elif entry.same_as is not None:
            found[entry.name] = found[entry.same_as]
        else:
            number, held = filled.get(tag, (0, 0))
            if held and held + entry.nbytes > limit:
                number, held = number + 1, 0
            filled[tag] = (number, held + entry.nbytes)
            found[entry.name] = f"{tag}{_SHARD}{number:05}"
    return found


def tag_of_shard(shard: str) -> str:
    """The tag that a shard belongs to."""
    return shard.partition(_SHARD)[0]
