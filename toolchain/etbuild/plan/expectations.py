"""Compares the statements of a BUILD file about a program with the program's plan."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from etbuild import json_schema, plugins
from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean
from etbuild.files.weights_suffixes import INDEX_SUFFIXES
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import adapter_files, weights_names


@dataclass(frozen=True)
class InputAttribute:
    """An attribute of the rule that holds files.

    Attributes:
        read_by: Who reads the files, for messages.
        actions: The actions of build rules that read them: `export`, `template` (lowers methods without weights),
            `program` (writes or runs the program) and `report`.
        names: Returns the names of these files in a plan, each with its place in the manifest.
        others: Other attributes that may list the files instead.
        renamed: Whether the rule has an attribute `NAME_as` for files under other names.
    """

    read_by: str
    actions: tuple[str, ...]
    names: Callable[[Plan], Mapping[str, DocumentPath]]
    others: tuple[str, ...] = ()
    renamed: bool = True


INPUTS: Mapping[str, InputAttribute] = {
    "data": InputAttribute(
        "the export reads", ("export", "template", "program"), lambda plan: plan.export_plan.data_names
    ),
    "weights": InputAttribute(
        "lowering reads", ("program",), lambda plan: weights_names(plan.lower_plan.weights), ("data",)
    ),
    "adapters": InputAttribute(
        "the step that writes the program reads",
        ("program",),
        lambda plan: adapter_files(plan.lower_plan.adapters, "weights"),
        ("data",),
    ),
    "tokenizer": InputAttribute("the last step copies", ("report",), lambda plan: plan.tokenizer_names, renamed=False),
}
"""The attributes of the rule that hold files, besides sources. `make reference` writes them for the rules."""


def check_expectations(plan: Plan, expected: dict[str, list[str] | None], needed: Collection[str] = ()) -> None:
    """Compares the attributes of a build rule with the manifest.

    Args:
        plan: The plan.
        expected: For each attribute of the rule (`methods`, `backends`, `plugins`, `named_data`, `sharded_named_data`)
            its values; None if the rule does not set it.
        needed: The packages of the plug-ins that planning needs.

    Raises:
        InputError: They differ. The error says what to write into the BUILD file.
    """
    listed, has_backends = expected.get("plugins") or (), expected.get("backends") is not None
    actual = {
        "methods": sorted(plan.methods),
        "backends": plan.backends,
        "plugins": plugins_to_list(plan, needed, listed, has_backends),
        "named_data": [tag for tag in plan.tags if tag not in plan.sharded_tags],
        "sharded_named_data": plan.sharded_tags,
    }
    problems = []
    for attribute, values in expected.items():
        if values is not None and sorted(values) != actual[attribute]:
            path: DocumentPath = _PLACES.get(attribute, (attribute,))
            said = json.dumps(sorted(values))
            message = f"the manifest and the target differ: the target's `{attribute}` is {said}"
            hint = f"{_edit(attribute, json.dumps(actual[attribute]))}, or change the manifest"
            problems.append(Problem(message, path, hint))
    InputError.raise_if(problems)


def plugins_to_list(plan: Plan, needed: Collection[str], listed: Collection[str], has_backends: bool) -> list[str]:
    """The `plugins` of a target that has listed these.

    Args:
        plan: The plan.
        needed: The packages of the plug-ins that planning needs.
        listed: What it lists.
        has_backends: Whether it lists its `backends`. Then these stand for their plug-ins, which it need not list.
    """
    provided = plugins.group("backend")
    implied = {provided[backend].name for backend in plan.backends if has_backends and backend in provided}
    return [name for name in plan.plugins_of_target(needed) if name in listed or name not in implied]


_PLACES: Mapping[str, DocumentPath] = {"backends": (), "plugins": (), "sharded_named_data": ("named_data",)}
"""The places in a manifest of attributes that are called otherwise there, or stand nowhere."""


def check_name(plan: Plan, expected: str, program_name: str | None = None, variant: str | None = None) -> None:
    """Compares a target's name for the manifest with the manifest's own, and checks the name of the program.

    Args:
        plan: The plan.
        expected: The manifest's `name` in the target, with the variant's name.
        program_name: The name of the program if it differs from the manifest's: the target then has a `manifest_name`.
        variant: The variant.

    Raises:
        InputError: They differ, or no program can have the target's name. The error says what to write.
    """
    if expected != plan.name:
        wanted, said = (json.dumps(name.removesuffix(f".{variant}")) for name in (plan.name, expected))
        if program_name is None:
            message = f"the manifest and the target differ: the target's `name` is {json.dumps(expected)}"
            edit = f"write `name = {json.dumps(plan.name)}` or {_edit('manifest_name', wanted).removeprefix('write ')}"
        else:
            message = f"the manifest and the target differ: the target's `manifest_name` is {said}"
            edit = _edit("manifest_name", wanted)
        raise InputError.at(("name",), message, f"{edit}, or change the manifest")
    pattern: str = json_schema.validator("plan").schema["$defs"]["programName"]["pattern"]
    if program_name is not None and not re.fullmatch(pattern, program_name):
        allowed = "letters, digits, `_` and `-`, and a dot before a variant and before a checkpoint"
        message = f"the program is called like its target, and `{program_name}` cannot be the name of a program"
        raise InputError.at(("name",), message, f"rename the target: its name may have {allowed}")


def check_inputs(plan: Plan, listed: Mapping[str, Collection[str]]) -> None:
    """Compares the files that a target lists with those that the manifest names, before anything reads them.

    Args:
        plan: The plan.
        listed: For each of `INPUTS`, the names of its files. A directory ends with `/`: its files are not known yet.

    Raises:
        InputError: A file that a step reads is not listed, or not in an attribute for that step; or the target lists
            weights that nothing reads. Each error says which attribute to change.
    """
    problems, meant = [], []
    for problem, name in _not_listed(plan, listed):
        problems.append(problem)
        meant.append(name)
    problems += _not_read(plan, listed, [name for name in meant if name is not None])
    InputError.raise_if(problems)


def _edit(attribute: str, value: str) -> str:
    """The text that says what to change in a target."""
    return f"write `{attribute} = {value}` into the BUILD file (`etbuild targets` does it)"


def check_tokenizer(plan: Plan, listed: Collection[str]) -> None:
    """Compares the files of the tokenizer that a target lists with those that the manifest names.

    Raises:
        InputError: They differ. The error says what to write into the BUILD file.
    """
    named, said = sorted(plan.tokenizer_names), sorted(listed)
    if named != said:
        message = f"the manifest and the target differ: the target's `tokenizer` is {json.dumps(said)}"
        hint = f"{_edit('tokenizer', json.dumps(named))}, or change the manifest"
        raise InputError.at(("tokenizer",) if named else (), message, hint)


def _not_listed(plan: Plan, listed: Mapping[str, Collection[str]]) -> Iterator[tuple[Problem, str | None]]:
    """The files that a step reads, but that the step's attributes do not list. Each has the name of the file or folder
    that the target seems to list in its place; None if there is none."""
    named = [name for row in INPUTS.values() for name in (*row.names(plan), *plan.weights_names)]
    for attribute, row in INPUTS.items():
        entries = [entry for place in (attribute, *row.others) for entry in listed[place]]
        known = [name for name in named if any(_holds(entry, name) for entry in entries)]
        unnamed = [each for each in entries if not any(_holds(each, name) or _is_shard(each, name) for name in known)]
        for name, path in row.names(plan).items():
            if any(_holds(entry, name) for entry in entries):
                continue
            where = next((key for key in INPUTS if any(_holds(entry, name) for entry in listed[key])), None)
            if where is not None:
                message = f"the target lists `{name}` under `{where}`, but {row.read_by} it"
                yield Problem(message, path, attributes=(attribute,)), None
            elif (found := _other_name(name, unnamed, attribute)) is not None:
                other, hint = found
                message = f"the manifest names `{name}`, and the target lists `{other}`"
                yield Problem(message, path, hint), other
            else:
                message, near = f"the target does not list `{name}`", did_you_mean(name, entries)
                yield Problem(message, path, near, attributes=(attribute,)), None


def _other_name(name: str, entries: Collection[str], attribute: str) -> tuple[str, str] | None:
    """The name under which a target seems to list a file or folder of the manifest; and what to write."""
    for entry in entries:
        start = f"/{entry.rstrip('/')}/".find(f"/{name}/")
        other = entry[: start + len(name)] if start >= 0 else entry.rstrip("/")
        if PurePosixPath(other).name == PurePosixPath(name).name:
            rule = (
                "a file in the manifest's folder is named by its path from there, any other by its path from the root"
            )
            return other, f"if they are the same, write `{other}` here: {rule} of the repository"
    near = difflib.get_close_matches(name, entries, n=1)
    if not near:
        return None
    hint = f"if there is no file `{near[0]}`, correct the target's `{attribute}`; this step does not open the files"
    return near[0], f"{hint}\nif there is one, write `{near[0]}` here, or list `{name}` too"


def _not_read(plan: Plan, listed: Mapping[str, Collection[str]], meant: Collection[str]) -> Iterator[Problem]:
    """The listed weights that the manifest does not name: the program would not have them. `meant` are names in other
    errors."""
    of_model, of_adapters = plan.weights_names, adapter_files(plan.lower_plan.adapters, "weights")
    elsewhere = {**plan.export_plan.data_names, **plan.tokenizer_names}  # `_not_listed` says where these belong
    for key, what, read, others in (
        ("weights", "weights", of_model, of_adapters),
        ("adapters", "weights of an adapter", of_adapters, of_model),
    ):
        for entry in listed[key]:
            if any(_holds(entry, name) or _is_shard(entry, name) for name in (*read, *others, *elsewhere, *meant)):
                continue
            path: DocumentPath = ("model", key) if read else ("model",)
            hint = f"name it in `model.{key}`, or remove it from the target"
            if not PurePosixPath(entry).suffix and not entry.endswith("/"):
                called = PurePosixPath(entry).name
                hint = (
                    f"if `{called}` is the name of a target, it does not exist: an existing one is listed by its files"
                )
            near = did_you_mean(entry, read)
            message = f"the target lists the {what} `{entry}`, and the manifest does not name them"
            yield Problem(message, path, f"{hint}; {near}" if near else hint)


def _holds(entry: str, name: str) -> bool:
    """Whether a listed file or directory holds the file or folder, or matches the pattern, that the manifest names."""
    is_in = entry.startswith(f"{name}/") or (entry.endswith("/") and f"{name}/".startswith(entry))
    return entry == name or is_in or fnmatchcase(entry, name)


def _is_shard(entry: str, index: str) -> bool:
    """Whether a listed file may be a shard of an index. The names of the shards are in the index."""
    return index.endswith(INDEX_SUFFIXES) and PurePosixPath(index).parent in PurePosixPath(entry).parents
