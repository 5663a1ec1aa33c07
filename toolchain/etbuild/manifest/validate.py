"""Reads a manifest and checks it: against its schema, and against rules that a schema cannot express."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from etbuild import json_schema, plugins
from etbuild.errors import DocumentPath, InputError, Position, Problem, printable, unknown
from etbuild.files.value_limits import INT64
from etbuild.files.weights_suffixes import (
    GGUF_SUFFIX,
    INDEX_SUFFIXES,
    WEIGHTS_SUFFIXES,
    suffixes_of_plugins,
)
from etbuild.manifest import (
    example_inputs,
    executorch_options,
    file_names,
    fitting,
    parameters,
    partitioners,
    plugin_sections,
    sections,
    variants,
    yaml_document,
)
from etbuild.manifest.parameters import mapping
from etbuild.manifest.variants import Merged
from etbuild.manifest.weights import checkpoints
from etbuild.manifest.yaml_document import Document

_BEGINS = "a manifest starts with `schema: executorch-model/v1`"
_OTHER_SUFFIXES = (
    *(".ggml", ".h5", ".hdf5", ".json", ".keras", ".mlmodel", ".msgpack", ".npy", ".npz", ".onnx"),
    *(".pb", ".pickle", ".pkl", ".pt2", ".pte", ".ptd", ".tar", ".tflite", ".txt", ".yaml", ".yml", ".zip", ".gz"),
)
"""Types of other files. Any other name without a known type may be the name of a folder, such as `Qwen2.5-0.5B`."""
_LONG_QUOTE = re.compile(r"""([`"])((?:(?!\1).){100})(?:(?!\1).)+\1""")  # the first 100 characters are shown


@dataclass(frozen=True)
class Manifest:
    """A manifest that passed all checks, with a variant merged over it, and with the values of parameters.

    Attributes:
        data: The data. `name` is the name of the program, and there are no `variants` and `parameters`.
        positions: The position of each value.
    """

    data: sections.Manifest
    positions: dict[DocumentPath, Position]


def load(
    path: Path, name: str | None = None, variant: str | None = None, settings: Mapping[str, Any] = MappingProxyType({})
) -> Manifest:
    """Reads and checks a manifest.

    Args:
        path: The file.
        name: The file's name in errors; by default `path` as given.
        variant: The variant; None for the manifest without one.
        settings: For some parameters, a value, or its text as the command line has it.

    Raises:
        InputError: The manifest has problems. The error lists all of them, in the order of the file.
    """
    return load_each(path, name, [variant], settings)[0]


def load_each(
    path: Path,
    name: str | None = None,
    wanted: Sequence[str | None] | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> list[Manifest]:
    """Reads and checks several variants of a manifest, as `load` does.

    Args:
        path: The file.
        name: The file's name in errors; by default `path` as given.
        wanted: The names of the variants; None in it means the manifest without a variant. By default all of these.
        settings: For some parameters, a value, or its text as the command line has it.

    Raises:
        InputError: One of them has problems. The error lists all of them, in the order of the file.
    """
    try:
        _check_kind(path, name or str(path))
        return _load_each(yaml_document.load(path, name, _BEGINS), wanted, settings)
    except InputError as error:
        raise InputError([_quoting_in_short(problem) for problem in error.problems]) from None


def _check_kind(path: Path, name: str) -> None:
    """Refuses files that users often name in place of the manifest: a directory, a source, a program or an index. An
    error of the YAML parser would not help."""
    found: tuple[str, str] | None = None
    if path.suffix == ".py":
        found = "a Python source", f"name what makes the model: `etbuild build {name}:CALLABLE` needs no manifest"
    elif path.suffix.startswith(".py:"):
        found = "a callable of a source", f"`etbuild build {name} --save FILE` writes a manifest for the other verbs"
    elif path.suffix in (".pte", ".ptd"):
        found = "a program", "`etbuild --help` lists the verbs for programs, such as `inspect` and `run`"
    elif path.name.endswith(".index.json"):
        found = "the index of a build", "name the manifest that it was made from"
    elif os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises if it has no permission to look
        found = "a directory", "name a file in it, such as model.yaml"
    if found is not None:
        raise InputError.of(f"{name}: is {found[0]}, not a manifest", found[1])


def _load_each(document: Document, wanted: Sequence[str | None] | None, settings: Mapping[str, Any]) -> list[Manifest]:
    data = document.data
    if not isinstance(data, dict):
        raise InputError([*_problems(data)]).located(document.positions)
    problems = document.located([*variants.check(data, wanted or ()), *parameters.check_unused(data)])
    everything = [None] if problems else [None, *variants.names(data)]
    manifests: list[Manifest] = []
    of_base: set[tuple[object, ...]] = set()
    seen: set[tuple[object, ...]] = set()
    for variant in everything if wanted is None else [name for name in wanted if name in everything]:
        merged = variants.merge(document, variant)
        found = {(each.message, each.path, each.hint): each for each in _resolve(merged, settings)}
        # A problem without the variant is also one with it. Two variants may write the same wrong value.
        own = {
            told
            for told, each in found.items()
            if (merged.replaces if told in of_base else merged.writes)(each.path or ())
        }
        new = [each for told, each in found.items() if told in own or told not in seen]
        seen.update(found)
        if variant is None:
            of_base.update(found)
        problems += [merged.blamed(problem) for problem in merged.document.located(new)]
        manifests.append(Manifest(_renamed(merged), merged.document.positions))
    if problems:
        raise InputError(problems).located({})
    return manifests


def _renamed(merged: Merged) -> sections.Manifest:
    """The data of a merged manifest. The name of its program contains the variant's name."""
    data: sections.Manifest = merged.document.data
    return data if merged.variant is None else {**data, "name": f"{data.get('name')}.{merged.variant}"}


def _resolve(merged: Merged, settings: Mapping[str, Any]) -> list[Problem]:
    """Replaces the references to parameters in a merged manifest, and returns the problems of the manifest."""
    data = merged.document.data
    problems = [*merged.problems, *parameters.check_declared(data)]
    if problems:
        return problems
    values = parameters.values(data, settings, problems)
    rest = {key: value for key, value in data.items() if key != parameters.KEY}
    used = {name for _, name in parameters.references(rest)}
    for name in sorted(settings.keys() & values.keys() - used):
        message = f"{parameters.as_option(name, settings[name])} would have no effect: nothing uses the parameter"
        problems.append(Problem(message, (parameters.KEY, name), at_key=True))
    merged.document.data = parameters.substituted(rest, values, problems)
    # The order can be checked only if the partitioners themselves are valid.
    return problems or [*_problems(merged.document.data)] or partitioners.check_orders(merged.document.data)


def _quoting_in_short(problem: Problem) -> Problem:
    """The problem with its quotes from the manifest on one line, shortened if they are long."""
    texts = (problem.message, problem.hint or "")
    message, hint = (_LONG_QUOTE.sub(r"\1\2...\1", printable(text)) for text in texts)
    return replace(problem, message=message, hint=hint or None)


def _problems(data: Any) -> Iterator[Problem]:
    """Yields the problems of a manifest's data: those that its schema finds, and those in the other parts."""
    found = json_schema.problems("model", data)
    yield from found
    if not isinstance(data, dict):
        return
    if "methods" not in data and "task" not in mapping(mapping(data, "model"), "huggingface"):
        hint = "add `methods: {forward: {example_inputs: [{shape: [1, 8]}]}}`"
        yield Problem("the key `methods` is missing", (), hint)
    broken = {problem.path for problem in found if problem.path}
    yield from fitting.other_problems(data, broken, _cross_checks)


def _cross_checks(data: sections.Manifest) -> Iterator[Problem]:
    """Completes a manifest that fits its schema, and yields its problems."""
    try:
        data = plugin_sections.completed(data)
    except InputError as error:  # it needs a plug-in that is not here
        yield from error.problems
        return
    model, defaults, methods = data.get("model", {}), data.get("defaults", {}), data.get("methods", {})
    if "model" not in data and not (methods and all("program" in method for method in methods.values())):
        yield Problem("the key `model` is missing", (), 'add `model: {factory: "model:create"}`')
    yield from plugin_sections.missing(data)
    yield from plugin_sections.check(data)
    if "model" in data:
        yield from _check_model(model)
    yield from partitioners.check(defaults, methods)
    for name, method in methods.items():
        yield from _check_method(method, ("methods", name))
    yield from _check_constant_methods(data.get("constant_methods", {}), methods)
    yield from _check_named_data(data.get("named_data", {}))
    for index, name in enumerate(data.get("custom_ops", {}).get("libraries", [])):
        yield from file_names.check_input(name, ("custom_ops", "libraries", index))
    yield from executorch_options.check(data, methods)
    yield from _check_checks(data, methods)


def _check_model(model: sections.Model) -> Iterator[Problem]:
    yield from _check_origin(model)
    for path, checkpoint in checkpoints(model).items():
        yield from _check_checkpoint(checkpoint, path, "huggingface" in model)


def _check_checkpoint(checkpoint: sections.Checkpoint, path: DocumentPath, of_transformers: bool) -> Iterator[Problem]:
    """Checks an entry of `weights`. `path` is the place of its file's name."""
    for pattern, renamed in checkpoint.get("rename", {}).items():
        if pattern.count("*") != renamed.count("*"):
            message = f"`{pattern}` and `{renamed}` do not have the same number of `*`"
            hint = 'each `*` stands for the same text in both: {"model.*": "*"}'
            yield Problem(message, (*path[:-1], "rename", pattern), hint)
    name = checkpoint["file"]
    yield from file_names.check_input(name, path)
    known = (*WEIGHTS_SUFFIXES, *INDEX_SUFFIXES, *suffixes_of_plugins())
    if not name.endswith(known) and name.lower().endswith(_OTHER_SUFFIXES):
        hint = f"known: {', '.join(known)}, and folders"
        yield Problem(f"`{name}` has an unknown file type", path, hint)
    elif name.endswith(GGUF_SUFFIX) and not of_transformers:
        hint = "convert it first: transformers' `from_pretrained(DIR, gguf_file=FILE)`, then `save_pretrained`"
        message = f"`{name}` goes with `model.huggingface`: only transformers knows the layout of its tensors"
        yield Problem(message, path, hint)


def _check_origin(model: sections.Model) -> Iterator[Problem]:
    """Checks that the module has exactly one origin, and that no key belongs to another origin."""
    origins = [key for key in ("factory", "huggingface") if key in model]
    if len(origins) != 1:
        got = " and ".join(f"`{key}`" for key in origins) or "none of them"
        message = f"a model needs one of `factory` and `huggingface`; this one has {got}"
        yield Problem(message, ("model",), "for example factory: model:create")
    elif "huggingface" in model and "kwargs" in model:
        message = "`kwargs` goes with `factory`, not with `huggingface`"
        yield Problem(message, ("model", "kwargs"), "use `config`", at_key=True)


def _check_method(method: sections.Method, path: DocumentPath) -> Iterator[Problem]:
    if "program" in method:
        yield from _check_program(method, path)
        return
    if method.keys().isdisjoint(("example_inputs", "example_kwargs", "samples")):
        hint = "add `example_inputs: [{shape: [1, 16], dtype: int64}]`, or `[]` if the method has no inputs"
        yield Problem("the key `example_inputs` is missing", path, hint)
    yield from example_inputs.check(method, path)


def _check_program(method: sections.Method, path: DocumentPath) -> Iterator[Problem]:
    """Checks a method that is an exported program. Keys that only an export uses are errors."""
    name = method["program"]
    yield from file_names.check_input(name, (*path, "program"))
    if not name.endswith(tuple(plugins.group("method_source"))):
        yield Problem(f"`{name}` is not a .pt2 file", (*path, "program"), "torch.export.save writes them")
    for key in (*example_inputs.KEYS, "entry", "adapter", "strict", "quantize", "samples", "io"):
        if key in method:
            hint = "the method in the file is already exported: set this when you export it"
            yield Problem(f"`{key}` does not go with `program`", (*path, key), hint, at_key=True)


def _check_constant_methods(constants: dict[str, object], methods: Collection[str]) -> Iterator[Problem]:
    low, high = INT64
    for name, value in constants.items():
        if name in methods:
            yield Problem(
                f"`{name}` is also the name of a method", ("constant_methods", name), "choose another name", at_key=True
            )
        if isinstance(value, dict) and len({"factory", "schema"} & value.keys()) != 1:
            yield Problem("write one of `factory` and `schema`", ("constant_methods", name), "for example schema: NAME")
        for form, hint in unknown(_form(value), plugins.group("constant_schema")):
            yield Problem(f"there is no form `{form}` of a schema", ("constant_methods", name, "schema"), hint)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not low <= number <= high:
                yield Problem(f"{number} does not fit into 64 bits", ("constant_methods", name))


def _form(value: object) -> list[str]:
    return [value["schema"]] if isinstance(value, dict) and "schema" in value else []


def _check_named_data(named_data: dict[str, sections.NamedData]) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for tag, entry in named_data.items():
        yield from file_names.check_tag(tag, ("named_data", tag))
        for index, pattern in enumerate(entry.get("parameters", [])):
            if owners.setdefault(pattern, tag) != tag:
                message = f"the tag `{owners[pattern]}` has the same pattern `{pattern}`"
                hint = "each parameter belongs to one tag: remove the pattern from one of them"
                yield Problem(message, ("named_data", tag, "parameters", index), hint)


def _check_checks(data: sections.Manifest, methods: Collection[str]) -> Iterator[Problem]:
    """Checks that the limits of `checks` are for methods and tags in the manifest."""
    checks = data.get("checks", {})
    tags = [*data.get("named_data", {}), *data.get("model", {}).get("adapters", {})]
    for check, kind, known in (
        ("max_memory_bytes", "method", methods),
        ("min_delegated", "method", methods),
        ("max_named_data_bytes", "tag", tags),
    ):
        limits = checks.get(check)
        for name, hint in unknown(limits if isinstance(limits, dict) else (), known):
            hint = hint if known else "the manifest has no `named_data`"
            yield Problem(f"there is no {kind} `{name}`", ("checks", check, name), hint, at_key=True)
