"""Finds the tags of parameters and buffers, and the shards that their weights are in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from etbuild.errors import InputError, Problem, did_you_mean
from etbuild.model.tensor_facts import TensorFacts, first_name
from etbuild.plan.step_plans import MethodPlan

_SHARD = "#"  # tags in a manifest cannot contain this character


def of_tensors(lower_plan: MethodPlan, facts: Collection[TensorFacts]) -> dict[str, str]:
    """Assigns each tagged parameter and buffer to a shard. A tag that is not split has one shard with the tag's name.

    Weights fill shards in the order of the module, by size. The result does not depend on their content or on the
    graph. So a changed weight changes only its own shard, and another method changes none.

    Args:
        lower_plan: The lower plan, which has the shard size of each tag in bytes.
        facts: Facts about the module's parameters and buffers, in the order of the module.

    Returns:
        The shard of each tagged tensor, by the tensor's name.

    Raises:
        InputError: A pattern matches nothing, or a parameter belongs to two tags.
    """
    tags = _tags(lower_plan, facts)
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


def _tags(lower_plan: MethodPlan, facts: Iterable[TensorFacts]) -> dict[str, str]:
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
    # Adapters come first, because patterns of other tags must not match their weights.
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
    InputError.raise_if(problems)
    return found


def tag_of_shard(shard: str) -> str:
    """The tag that a shard belongs to."""
    return shard.partition(_SHARD)[0]


def of_adapters(lower_plan: MethodPlan, shards: Mapping[str, str]) -> set[str]:
    """The names of the weights of adapters.

    Args:
        lower_plan: The lower plan.
        shards: The shard of each parameter that has a tag, by name.
    """
    return {name for name, shard in shards.items() if lower_plan.named_data[tag_of_shard(shard)].adapter}
