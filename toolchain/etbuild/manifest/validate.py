"""Reads a manifest and checks it: against its schema, and against rules that a schema cannot express."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from etbuild import backends, json_schema, plugins
from etbuild.backends import call_slots, recipes
from etbuild.errors import DocumentPath, InputError, Position, Problem, did_you_mean, printable, steers, unknown
from etbuild.files.value_limits import INT64
from etbuild.files.weights_suffixes import (
    GGUF_SUFFIX,
    INDEX_SUFFIXES,
    NUMPY_SUFFIX,
    WEIGHTS_SUFFIXES,
    suffixes_of_plugins,
)
from etbuild.manifest import (
    example_inputs,
    executorch_options,
    fitting,
    metadata,
    model_tests,
    parameters,
    plugin_sections,
    sections,
    variants,
    yaml_document,
)
from etbuild.manifest.parameters import mapping
from etbuild.manifest.variants import Merged
from etbuild.manifest.weights import checkpoints
from etbuild.manifest.yaml_document import Document
from etbuild.torchao_configs import TORCHAO_CONFIGS

_BEGINS = "a manifest starts with `schema: executorch-model/v1`"
_LONGEST_NAME, _LONGEST_PATH = 255, 1000  # for file names: bytes of each part, and characters of the path
_OTHER_SUFFIXES = (
    *(".ggml", ".h5", ".hdf5", ".json", ".keras", ".mlmodel", ".msgpack", ".npy", ".npz", ".onnx"),
    *(".pb", ".pickle", ".pkl", ".pt2", ".pte", ".ptd", ".tar", ".tflite", ".txt", ".yaml", ".yml", ".zip", ".gz"),
)
"""Types of other files. Any other name without a known type may be that of a folder, such as `Qwen2.5-0.5B`."""
_LONG_QUOTE = re.compile(r"""([`"])((?:(?!\1).){100})(?:(?!\1).)+\1""")  # the first 100 characters are shown


@dataclass(frozen=True)
class Manifest:
    """A manifest that passed all checks, with a variant merged over it and with the values of parameters.

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
        wanted: The names of the variants, and None for the manifest without one; by default all of these.
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
    """Refuses what is often named in place of the manifest: a directory, a source, a program or an index. YAML would
    find a place in it that says little."""
    found: tuple[str, str] | None = None
    if path.suffix == ".py":
        found = "a Python source", f"`etbuild init --factory {path.stem}:CALLABLE` writes a first manifest"
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
        # What is wrong without the variant is wrong with it too. Two variants may write the same wrong value.
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
    """The data of a merged manifest. The name of its program contains that of the variant."""
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
    return problems or [*_problems(merged.document.data)] or _check_orders(merged.document.data)


def _quoting_in_short(problem: Problem) -> Problem:
    """The problem with its quotes from the manifest on one line, and cut if they are long."""
    texts = (problem.message, problem.hint or "")
    message, hint = (_LONG_QUOTE.sub(r"\1\2...\1", printable(text)) for text in texts)
    return replace(problem, message=message, hint=hint or None)


def _problems(data: Any) -> Iterator[Problem]:
    """Yields the problems of a manifest's data: those that its schema finds, and those of the parts that fit it."""
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
    yield from _check_adapters(methods, model.get("adapters", {}))
    for name in model.get("adapters", {}):
        yield from _check_tag(name, ("model", "adapters", name))
    yield from plugin_sections.check(data, _check_input_name)
    yield from _check_tokenizer(data)
    yield from metadata.check(data.get("metadata", {}), model, plugin_sections.weights(data))
    if "model" in data:
        yield from _check_model(model)
    yield from _check_defaults(defaults, methods)
    lowered = {name: _partitioners(defaults, methods, name)[0] for name in methods}
    yield from _check_whole_programs(lowered)
    for name, method in methods.items():
        yield from _check_method(method, ("methods", name))
    yield from _check_constant_methods(data.get("constant_methods", {}), methods)
    yield from _check_named_data(data.get("named_data", {}))
    for index, name in enumerate(data.get("custom_ops", {}).get("libraries", [])):
        yield from _check_input_name(name, ("custom_ops", "libraries", index))
    yield from executorch_options.check(data, methods)
    yield from recipes.check(data.get("recipe"))
    yield from _check_quantize(defaults.get("quantize"), ("defaults", "quantize"), "recipe" in data)
    for name, method in methods.items():
        yield from _check_quantize(method.get("quantize"), ("methods", name, "quantize"), "recipe" in data)
    yield from _check_quantizers_fit(defaults, methods, lowered)
    yield from _check_checks(data, methods)
    yield from model_tests.check(data, methods, _check_example_file)


def _check_model(model: sections.Model) -> Iterator[Problem]:
    yield from _check_origin(model)
    for path, checkpoint in checkpoints(model).items():
        yield from _check_checkpoint(checkpoint, path, "huggingface" in model)


def _check_checkpoint(checkpoint: sections.Checkpoint, path: DocumentPath, of_transformers: bool) -> Iterator[Problem]:
    """Checks an entry of `weights`. `path` is the place that names its file."""
    for pattern, renamed in checkpoint.get("rename", {}).items():
        if pattern.count("*") != renamed.count("*"):
            message = f"`{pattern}` and `{renamed}` do not have the same number of `*`"
            hint = 'each `*` stands for the same text in both: {"model.*": "*"}'
            yield Problem(message, (*path[:-1], "rename", pattern), hint)
    name = checkpoint["file"]
    yield from _check_input_name(name, path)
    known = (*WEIGHTS_SUFFIXES, *INDEX_SUFFIXES, *suffixes_of_plugins())
    if not name.endswith(known) and name.lower().endswith(_OTHER_SUFFIXES):
        hint = f"known: {', '.join(known)}, and folders"
        yield Problem(f"`{name}` has an unknown file type", path, hint)
    elif name.endswith(GGUF_SUFFIX) and not of_transformers:
        hint = "convert it first: transformers' `from_pretrained(DIR, gguf_file=FILE)`, then `save_pretrained`"
        message = f"`{name}` goes with `model.huggingface`: only transformers knows the layout of its tensors"
        yield Problem(message, path, hint)


def _check_example_file(name: str, path: DocumentPath, loaded: bool) -> Iterator[Problem]:
    """Checks the name of a file with an input. A loader may read any file."""
    yield from _check_input_name(name, path)
    if not loaded:
        yield from _check_suffix(name, path, (*WEIGHTS_SUFFIXES, NUMPY_SUFFIX), "; for another file, name a `loader`")


def _check_origin(model: sections.Model) -> Iterator[Problem]:
    """Checks that the module comes from exactly one origin, and that no key belongs to another one."""
    origins = [key for key in ("factory", "huggingface") if key in model]
    if len(origins) != 1:
        got = " and ".join(f"`{key}`" for key in origins) or "none of them"
        message = f"a model needs one of `factory` and `huggingface`; this one has {got}"
        yield Problem(message, ("model",), "for example factory: model:create")
    elif "huggingface" in model and "kwargs" in model:
        message = "`kwargs` goes with `factory`, not with `huggingface`"
        yield Problem(message, ("model", "kwargs"), "use `config`", at_key=True)


def _check_tokenizer(data: sections.Manifest) -> Iterator[Problem]:
    names = data.get("tokenizer", [])
    seen: dict[str, str] = {}
    for index, name in enumerate(names if isinstance(names, list) else [names]):
        path: DocumentPath = ("tokenizer", index) if isinstance(names, list) else ("tokenizer",)
        yield from _check_input_name(name, path)
        base = PurePosixPath(name).name
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", base, re.ASCII):
            hint = "give it a name of letters, digits, `_`, `-` and `.`"
            yield Problem(f"`{base}` cannot be the name of an artifact", path, hint)
        if seen.setdefault(base, name) != name:
            yield Problem(f"`{seen[base]}` has the same file name", path, "the files travel in one directory")
    if names and "shard_size" in data.get("named_data", {}).get("tokenizer", {}):
        hint = "choose another name for the tag"
        message = "the shards of this tag would go to the directory of the tokenizer"
        yield Problem(message, ("named_data", "tokenizer"), hint, at_key=True)


def _check_input_name(name: str, path: DocumentPath) -> Iterator[Problem]:
    if steers(name):
        yield Problem(f"`{name}` holds a character that cannot be printed", path, "give the file another name")
    elif len(name) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in name.split("/")):
        yield Problem(f"`{name}` is too long for a file name", path)
    elif name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
        hint = "write the path of a declared input, relative to the manifest"
        yield Problem(f"`{name}` is not a relative path with `/`", path, hint)
    elif ".." in PurePosixPath(name).parts:
        hint = "declare the file as an input, and name it relative to the repository's root"
        yield Problem(f"`{name}` points outside the declared inputs", path, hint)
    elif name == ".":
        yield Problem("`.` is not a name of an input", path, "write the name of a file, or of a folder with weights")
    elif str(PurePosixPath(name)) != name:
        yield Problem(f"`{name}` is not the shortest form of the path", path, f"write `{PurePosixPath(name)}`")


def _check_suffix(
    name: str, path: DocumentPath, known: tuple[str, ...] = WEIGHTS_SUFFIXES, more: str = ""
) -> Iterator[Problem]:
    if not name.endswith(known):
        yield Problem(f"`{name}` has an unknown file type", path, f"known: {', '.join(known)}{more}")


def _check_defaults(defaults: sections.Defaults, methods: dict[str, sections.Method]) -> Iterator[Problem]:
    partitioners = defaults.get("partitioners", [])
    if isinstance(partitioners, list):
        yield from _check_partitioners(partitioners, ("defaults", "partitioners"))
        return
    for name, hint in unknown(partitioners, methods):
        yield Problem(f"there is no method `{name}`", ("defaults", "partitioners", name), hint, at_key=True)
    for name, entries in partitioners.items():
        path = ("defaults", "partitioners", name)
        if "partitioners" in methods.get(name, {}):
            yield Problem(f"`methods.{name}.partitioners` sets it too", path, "keep one of the two", at_key=True)
        yield from _check_partitioners(entries, path)


def _check_partitioners(entries: sections.Partitioners, path: DocumentPath) -> Iterator[Problem]:
    seen = set()
    for index, entry in enumerate(entries):
        here = (*path, index)
        name, options = _name_and_options(entry)
        yield from _at_name(backends.check(name, options, here), entry, here)
        if (name, json_schema.canonical(options)) in seen:
            yield Problem("the same partitioner is listed twice", here, "remove one of them")
        seen.add((name, json_schema.canonical(options)))
        if index != len(entries) - 1 and backends.claims(name).takes_the_rest:
            message = f"`{name}` takes all remaining operators, so no partitioner can follow it"
            yield Problem(message, here, "move it to the end")


def _name_and_options(entry: str | sections.BackendEntry) -> tuple[str, sections.Options]:
    """The name of a backend, and its options."""
    return (entry, {}) if isinstance(entry, str) else (entry["backend"], entry.get("options", {}))


def _at_name(problems: list[Problem], entry: str | sections.BackendEntry, path: DocumentPath) -> Iterator[Problem]:
    """Yields the problems, with those of the whole entry moved to its name."""
    name_path = (*path, "backend") if isinstance(entry, dict) else path
    for problem in problems:
        yield Problem(problem.message, name_path, problem.hint) if problem.path == path else problem


def _partitioners(
    defaults: sections.Defaults, methods: dict[str, sections.Method], name: str
) -> tuple[sections.Partitioners, DocumentPath]:
    """The partitioners of a method, its own or inherited, and their place."""
    if "partitioners" in methods[name]:
        return methods[name]["partitioners"], ("methods", name, "partitioners")
    inherited = defaults.get("partitioners", [])
    if isinstance(inherited, list):
        return inherited, ("defaults", "partitioners")
    return inherited.get(name, []), ("defaults", "partitioners", name)


def _check_orders(data: sections.Manifest) -> list[Problem]:
    """Checks that one order of the partitioners works for all methods. The rest of the manifest is valid.

    The partitioners of a recipe are not known yet. Next to those of a recipe of ExecuTorch, no order is wrong, as the
    tests of `call_slots` show.
    """
    defaults, methods = data.get("defaults", {}), data.get("methods", {})
    lists = {}
    try:
        for name in methods:
            entries, path = _partitioners(defaults, methods, name)
            named = [(*_name_and_options(entry), (*path, index)) for index, entry in enumerate(entries)]
            lists[name] = [call_slots.item(*entry) for entry in named if backends.get(entry[0]).has_partitioner]
        call_slots.check(lists)
    except InputError as error:
        return error.problems
    return []


def _check_whole_programs(lowered: dict[str, sections.Partitioners]) -> Iterator[Problem]:
    """Checks that a backend that needs a setting of the whole program is a backend of every method."""
    lists = {id(entries): {_name_and_options(entry)[0] for entry in entries} for entries in lowered.values()}
    for backend in sorted(set().union(*lists.values())):
        if not backends.claims(backend).whole_program:
            continue
        for name in sorted(name for name, entries in lowered.items() if backend not in lists[id(entries)]):
            message = f"`{backend}` changes operators in all methods of a program, but this method does not list it"
            yield Problem(message, ("methods", name), "list it here too, or make two programs", at_key=True)


def _check_method(method: sections.Method, path: DocumentPath) -> Iterator[Problem]:
    yield from _check_partitioners(method.get("partitioners", []), (*path, "partitioners"))
    if "program" in method:
        yield from _check_program(method, path)
        return
    if "example_inputs" not in method and "example_kwargs" not in method:
        hint = "add `example_inputs: [{shape: [1, 16], dtype: int64}]`, or `[]` if the method has no inputs"
        yield Problem("the key `example_inputs` is missing", path, hint)
    yield from example_inputs.check(method, path, _check_example_file)


def _check_adapters(methods: Mapping[str, sections.Method], adapters: Collection[str]) -> Iterator[Problem]:
    """Checks that the adapter of each method is one of the model."""
    for method, adapter in ((name, method["adapter"]) for name, method in methods.items() if "adapter" in method):
        if adapter not in adapters:
            hint = did_you_mean(adapter, adapters) if adapters else "the model has no `adapters`"
            yield Problem(f"there is no adapter `{adapter}`", ("methods", method, "adapter"), hint)


def _check_program(method: sections.Method, path: DocumentPath) -> Iterator[Problem]:
    """Checks a method that is an exported program. Keys that only an export uses are errors."""
    name = method["program"]
    yield from _check_input_name(name, (*path, "program"))
    if not name.endswith(tuple(plugins.group("method_source"))):
        yield Problem(f"`{name}` is not a .pt2 file", (*path, "program"), "torch.export.save writes them")
    for key in (*example_inputs.KEYS, "entry", "adapter", "strict", "quantize"):
        if key in method:
            hint = "the method in the file is already exported: set this when you export it"
            yield Problem(f"`{key}` does not go with `program`", (*path, key), hint, at_key=True)


def _check_quantizers_fit(
    defaults: sections.Defaults, methods: dict[str, sections.Method], lowered: dict[str, sections.Partitioners]
) -> Iterator[Problem]:
    """Checks that a method is quantized for the same options for which it is lowered."""
    seen = set()
    for name, method in methods.items():
        own = "quantize" in method
        quantize = (method["quantize"] if own else defaults.get("quantize")) or {}
        if (id(quantize), id(lowered[name])) in seen:
            continue
        seen.add((id(quantize), id(lowered[name])))
        place: DocumentPath = ("methods", name) if own else ("defaults",)
        for index, entry in enumerate(quantize.get("pt2e", {}).get("quantizers", [])):
            here = (*place, "quantize", "pt2e", "quantizers", index, "options")
            yield from _check_quantizer_fits(entry, here, name, lowered[name])


def _check_quantizer_fits(
    entry: str | sections.BackendEntry, path: DocumentPath, method: str, lowered: sections.Partitioners
) -> Iterator[Problem]:
    backend, options = _name_and_options(entry)
    for option in backends.claims(backend).same_options:
        given = options.get(option)
        others = [of for name, of in map(_name_and_options, lowered) if name == backend] if given is not None else []
        if others and given not in [other.get(option) for other in others]:
            message = f"the method `{method}` is quantized for {given} and lowered for {others[0].get(option)}"
            yield Problem(message, (*path, option), "write the same in both")


def _check_quantize(quantize: sections.Quantize | None, path: DocumentPath, recipe: bool) -> Iterator[Problem]:
    if quantize is None:
        return
    for index, entry in enumerate(quantize.get("torchao", [])):
        yield from _check_torchao(entry, (*path, "torchao", index))
    if "pt2e" not in quantize:
        return
    pt2e, path = quantize["pt2e"], (*path, "pt2e")
    for index, quantizer in enumerate(pt2e.get("quantizers", [])):
        here = (*path, "quantizers", index)
        yield from _at_name(backends.check_quantizer(*_name_and_options(quantizer), here), quantizer, here)
    if "quantizers" not in pt2e and not recipe:
        hint = "add `quantizers: [xnnpack]`, or use a recipe that has quantizers"
        yield Problem("the key `quantizers` is missing", path, hint)
    yield from _check_calibration(pt2e, path)


def _check_torchao(entry: sections.Torchao, path: DocumentPath) -> Iterator[Problem]:
    config = entry["config"]
    if ":" in config:
        for key in ("group_size", "scales", "fitting"):
            if key in entry:
                hint = "set it in the configuration that the callable returns"
                yield Problem(f"`{key}` does not go with a callable", (*path, key), hint, at_key=True)
        return
    if config not in TORCHAO_CONFIGS:
        yield Problem(f"unknown configuration `{config}`", (*path, "config"), did_you_mean(config, TORCHAO_CONFIGS))
    elif config == "packed":
        for key in ("group_size", "scales", "fitting"):
            if key in entry:
                hint = "remove it: the checkpoint says how its weights are packed, and other layers go to later entries"
                yield Problem(f"`{key}` does not go with `packed`", (*path, key), hint, at_key=True)
    elif entry.get("fitting") and entry.get("group_size", TORCHAO_CONFIGS[config]) is None:
        message = "every layer is fitting if the whole row shares a scale"
        yield Problem(message, (*path, "fitting"), "set `group_size`, or remove `fitting`", at_key=True)
    elif "embedding" in entry.get("layers", []) and "da" in config:
        message = f"`{config}` is for linear layers: an embedding has no activations to quantize"
        yield Problem(message, (*path, "layers"), "add an entry for embeddings, with `int4` or `int8`")
    if "kwargs" in entry:
        yield Problem("`kwargs` goes with a callable in `config`", (*path, "kwargs"), at_key=True)


def _check_calibration(pt2e: sections.Pt2e, path: DocumentPath) -> Iterator[Problem]:
    here = (*path, "calibration")
    if "calibration" not in pt2e:
        quantizers = [_name_and_options(entry)[1] for entry in pt2e.get("quantizers", [])]
        if "qat" not in pt2e and not all(options.get("dynamic") is True for options in quantizers):
            hint = "name a file or a factory of batches; or write `calibration: example_inputs`"
            yield Problem("the key `calibration` is missing: its data gives the ranges of activations", path, hint)
        return
    if "qat" in pt2e:
        message = "`calibration` does not go with `qat`, which finds the ranges by training"
        yield Problem(message, here, "remove one of the two", at_key=True)
    calibration = pt2e["calibration"]
    if not isinstance(calibration, dict):
        return
    sources = [key for key in ("file", "factory") if key in calibration]
    if len(sources) != 1:
        got = "both" if sources else "none of them"
        hint = 'for example {factory: "calibration:batches"}'
        yield Problem(f"calibration needs one of `file` and `factory`; this one has {got}", here, hint)
        return
    for key, owner in {"keys": "file", "kwargs": "factory"}.items():
        if key in calibration and owner != sources[0]:
            yield Problem(f"`{key}` goes with `{owner}`, not with `{sources[0]}`", (*here, key), at_key=True)
    if "file" in calibration:
        yield from _check_input_name(calibration["file"], (*here, "file"))
        yield from _check_suffix(calibration["file"], (*here, "file"))


def _check_constant_methods(constants: dict[str, object], methods: Collection[str]) -> Iterator[Problem]:
    low, high = INT64
    for name, value in constants.items():
        if name in methods:
            yield Problem(
                f"`{name}` is also the name of a method", ("constant_methods", name), "choose another name", at_key=True
            )
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not low <= number <= high:
                yield Problem(f"{number} does not fit into 64 bits", ("constant_methods", name))


OTHER_OUTPUTS = ("etrecord", "export", "pte")
"""What follows the program's name in the names of the program and of the directory that build rules export to."""


def _check_tag(tag: str, path: DocumentPath) -> Iterator[Problem]:
    if tag in OTHER_OUTPUTS:
        message = f"`{tag}` cannot be a tag: NAME.{tag} is another output"
        yield Problem(message, path, "choose another name for the tag", at_key=True)


def _check_named_data(named_data: dict[str, sections.NamedData]) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for tag, entry in named_data.items():
        yield from _check_tag(tag, ("named_data", tag))
        for index, pattern in enumerate(entry.get("parameters", [])):
            if owners.setdefault(pattern, tag) != tag:
                message = f"the tag `{owners[pattern]}` has the same pattern `{pattern}`"
                hint = "each parameter belongs to one tag: remove the pattern from one of them"
                yield Problem(message, ("named_data", tag, "parameters", index), hint)


def _check_checks(data: sections.Manifest, methods: Collection[str]) -> Iterator[Problem]:
    """Checks that the limits of `checks` are for methods and tags of the manifest."""
    checks = data.get("checks", {})
    tags = [*data.get("named_data", {}), *data.get("model", {}).get("adapters", {})]
    for check, kind, known in (
        ("max_memory_bytes", "method", methods),
        ("min_delegated", "method", methods),
        ("max_named_data_bytes", "tag", tags),
        ("max_error", "method", methods),
        ("min_sqnr", "method", methods),
    ):
        limits = checks.get(check)
        for name, hint in unknown(limits if isinstance(limits, dict) else (), known):
            hint = hint if known else "the manifest has no `named_data`"
            yield Problem(f"there is no {kind} `{name}`", ("checks", check, name), hint, at_key=True)
    for name, hint in unknown(checks.get("compare", {}).get("methods", {}), methods):
        yield Problem(f"there is no method `{name}`", ("checks", "compare", "methods", name), hint, at_key=True)
