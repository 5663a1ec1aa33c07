"""Describes the parameters and buffers of a module, and finds their tags and shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch

from etbuild.errors import InputError, Problem, did_you_mean
from etbuild.model.module import named_tensors
from etbuild.model.stored_parts import StoredPart, left_in_files, parts
from etbuild.model.tensor_bytes import dtype_name, flat_bytes
from etbuild.plan.step_plans import MethodPlan

Recipe = dict[str, Any]
"""How the content of a tensor is computed from one of the weights files, as JSON data. `weight` is the name of that
weight in the module. With nothing else, the tensor is the weight. `quantize.deferred` makes the others."""
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
        stored_as: The tensors of a file that hold its content, if transformers stores it in another form. If its
            content does not come from files: the tensor that transformers does not read, where a file has it.
        computed: How its content is computed from a weight; None if it is not.
    """

    name: str
    dtype: str
    shape: list[int]
    parameter: bool
    same_as: str | None
    in_weights: bool
    also: list[str] = field(default_factory=list)
    stored_as: list[StoredPart] = field(default_factory=list)
    computed: Recipe | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"

    @property
    def nbytes(self) -> int:
        """The size of its content in bytes."""
        return int(torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize)

    def facts(self) -> dict[str, object]:
        """The facts as JSON data, which `from_facts` accepts."""
        left_out: dict[str, object] = {"stored_as": [], "computed": None}
        fields = {**asdict(self), "stored_as": [part.facts() for part in self.stored_as]}
        return {key: value for key, value in fields.items() if key not in left_out or value != left_out[key]}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> TensorFacts:
        """What `facts` returned."""
        return cls(**{**facts, "stored_as": [StoredPart.from_facts(part) for part in facts.get("stored_as", [])]})


def describe(module: torch.nn.Module, weights: bool) -> list[TensorFacts]:
    """Describes the parameters and buffers of a module, in the order of the module.

    Args:
        module: The module.
        weights: Whether the content of its state dict comes from weights files.
    """
    loaded = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()} if weights else set()
    stored, first = {**left_in_files(module), **parts(module)} if weights else {}, dict[int, str]()
    return [_facts(name, x, first, id(x) in loaded, stored) for name, x in named_tensors(module).items()]


def describe_state(module: torch.nn.Module) -> list[TensorFacts]:
    """Describes the tensors that weights files must contain for `load_state_dict`, by the names of the state dict, and
    those that are not read where files have them."""
    # Entries of `get_extra_state` are not tensors, and safetensors cannot hold them.
    stored = {name: x for name, x in module.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    in_files, first = parts(module), dict[int, str]()
    left = {name: each for name, each in left_in_files(module).items() if name not in stored}
    found = [_facts(name, tensor, first, True, in_files) for name, tensor in stored.items()]
    return found + [_facts(name, module.get_buffer(name), {}, False, left) for name in left]


def _facts(
    name: str, tensor: torch.Tensor, first: dict[int, str], in_weights: bool, stored: Mapping[str, list[StoredPart]]
) -> TensorFacts:
    """The facts about a tensor. `first` has the first name of each tensor by the tensor's id; a new tensor is added.
    `stored` has the parts of each tensor that the weights files hold in another form."""
    same_as = first.setdefault(id(tensor), name)
    return TensorFacts(
        name,
        dtype_name(tensor.dtype),
        list(tensor.shape),
        isinstance(tensor, torch.nn.Parameter),
        None if same_as == name else same_as,
        in_weights,
        stored_as=stored.get(name, []),
    )


def first_name(entry: TensorFacts) -> str:
    """The first name of a tensor, which all its names have in common."""
    return entry.same_as or entry.name


def form(tensor: torch.Tensor) -> str:
    """The dtype and shape of a tensor, as errors show them: `float32[2, 3]`."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits."""
    return one is other or (form(one) == form(other) and torch.equal(_words(one), _words(other)))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, as elements of eight bytes if there are whole ones: they are compared faster."""
    flat = flat_bytes(tensor)
    flat = flat.clone() if flat.storage_offset() % 8 else flat
    return flat if len(flat) % 8 else flat.view(torch.int64)


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
    aliases: dict[str, list[str]] = {}  # all names of tied weights get the same tag
    for entry in entries.values():
        aliases.setdefault(first_name(entry), []).append(entry.name)
    found: dict[str, str] = {}
    problems = []
    # Adapters come first, because the patterns of other tags do not match their weights.
    for tag, content in sorted(lower_plan.named_data.items(), key=lambda item: (not item[1].adapter, item[0])):
        names = [name for name in entries if name not in found or not lower_plan.named_data[found[name]].adapter]
        for index, pattern in enumerate(content.parameters):
            path = ("named_data", tag, "parameters", index)
            known_as = [(entries[name], each) for name in names for each in (name, *entries[name].also)]
            firsts = {first_name(entry): None for entry, each in known_as if fnmatchcase(each, pattern)}
            matching = [alias for first in firsts for alias in aliases[first]]
            if not matching:
                problems.append(
                    Problem(f"the pattern `{pattern}` matches no parameter", path, did_you_mean(pattern, names))
                )
            for name in matching:
                if found.setdefault(name, tag) != tag:
                    message = f"`{pattern}` matches `{name}`, which already belongs to the tag `{found[name]}`"
                    problems.append(Problem(message, path, "change the patterns so that each parameter has one tag"))
                    break
    if problems:
        raise InputError(problems)
    return found


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
