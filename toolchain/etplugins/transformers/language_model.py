"""`model.huggingface` in a manifest: fills in what follows from its task and its cache, and checks it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from etbuild.errors import DocumentPath, Problem, unknown
from etbuild.manifest.file_names import check_input
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest, Method, Options
from etplugins.transformers import tasks
from etplugins.transformers.parts import CUSTOM_KINDS, CUSTOM_SDPA
from etplugins.transformers.sections import Cache, HuggingFace

_OPERATORS = "executorch.extension.llm.custom_ops.custom_ops"  # registers ExecuTorch's operators for language models
_FEATURES = ("feature-extraction", "image-feature-extraction")
_WITH_LENGTH = ("tokens", "sound")
_SAME_AS_NOTHING = (("logits", "all"), ("pooling", "none"))
_PATH: DocumentPath = ("model", "huggingface")
_NAMES = re.compile(r"get_(\w+_)?(input|output)_names")
_OF_CALLS = {
    "ring": "a `ring` holds a window and the tokens of one call",
    "external": "with `kind: external`, a call always takes as many tokens",
}
"""Kinds of caches whose sizes depend on the longest call, each with the reason."""


class HuggingFaceSection(Section):
    """A model of Hugging Face's transformers."""

    def completed(self, manifest: Manifest) -> Manifest:
        """The manifest with what its task writes."""
        return _with_names(_completed(manifest))

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of a model's task, cache, attention and configuration. The manifest is completed."""
        return _check(manifest)

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest with the values for the model and its task."""
        return _as_in_plans(_with_operators(manifest))


def _completed(manifest: Manifest) -> Manifest:
    """The manifest with what its task writes: the class of the model, and methods with their inputs."""
    model = manifest["model"]
    huggingface: HuggingFace = model["huggingface"]
    if "task" not in huggingface:
        return manifest
    task, methods = tasks.TASKS[huggingface["task"]], manifest.get("methods")
    if not methods and "forward" in task.entries and "adapters" in model:
        first = [*tasks.first_methods(task, huggingface)]
        of_adapters = {f"{name}_{each}": Method(adapter=each) for each in model["adapters"] for name in first}
        methods = {**{name: Method() for name in first}, **of_adapters}
    written: HuggingFace = {"class": task.model_class}
    huggingface = {**written, **({"logits": "last"} if task.needs_cache else {}), **huggingface}
    methods = tasks.completed(methods, task, huggingface)
    return {**manifest, "model": {**model, "huggingface": huggingface}, "methods": methods}


def _with_operators(manifest: Manifest) -> Manifest:
    """A checked manifest with the values that follow from its model and its task: the attention that reads the cache,
    and the custom operators."""
    model = manifest["model"]
    huggingface: HuggingFace = model["huggingface"]
    kind = huggingface.get("cache", {}).get("kind")
    if huggingface.get("attention") != CUSTOM_SDPA and kind not in CUSTOM_KINDS:
        return manifest
    cache: Cache = {**huggingface["cache"], "kind": kind or CUSTOM_KINDS[0]}
    operators = manifest.get("custom_ops", {})
    modules = operators.get("modules", [])
    return {
        **manifest,
        "model": {**model, "huggingface": {**huggingface, "attention": CUSTOM_SDPA, "cache": cache}},
        "custom_ops": {**operators, "modules": [*modules, *({_OPERATORS} - set(modules))]},
    }


def _with_names(manifest: Manifest) -> Manifest:
    """The manifest with a place for the names of inputs and outputs, which a program with an external cache says."""
    metadata = manifest.get("metadata", {})
    named: Any = {side: metadata.get(side, {}) for side in ("inputs", "outputs")}
    is_external = tasks.has_external_cache(manifest["model"]["huggingface"])
    return {**manifest, "metadata": {**metadata, **named}} if is_external else manifest


def _as_in_plans(manifest: Manifest) -> Manifest:
    """The manifest without what says the same as if it was not there, and with the entry of each method."""
    model = manifest["model"]
    huggingface = {key: value for key, value in model["huggingface"].items() if (key, value) not in _SAME_AS_NOTHING}
    if "cache" in huggingface:
        cache: Cache = model["huggingface"]["cache"]
        same = [("kind", "static"), ("max_seq_length", cache["max_length"])]
        huggingface["cache"] = {key: value for key, value in cache.items() if (key, value) not in same}
    methods: dict[str, Method] = {name: {"entry": "forward", **method} for name, method in manifest["methods"].items()}
    return {**manifest, "model": {**model, "huggingface": huggingface}, "methods": methods}


def _check(data: Manifest) -> Iterator[Problem]:
    """Yields the problems of a model's task, cache, attention and configuration. The manifest is completed."""
    huggingface = data["model"]["huggingface"]
    yield from _check_model(huggingface)
    yield from _check_methods(data.get("methods", {}), huggingface)
    yield from _check_drafts(data)
    yield from _check_shared(data)
    names = filter(_NAMES.fullmatch, data.get("constant_methods", {}))
    for name in names if tasks.has_external_cache(huggingface) else ():
        message = f"`{name}` has the names of the inputs and outputs of an external cache"
        yield Problem(message, ("constant_methods", name), "remove it", at_key=True)
    yield from _check_config(huggingface.get("config", {}), (*_PATH, "config"))
    settings = huggingface.get("generation_config")
    if isinstance(settings, str):
        yield from check_input(settings, (*_PATH, "generation_config"))


def _check_config(config: str | Options, path: DocumentPath) -> Iterator[Problem]:
    """Checks a configuration: the name of a file, or a mapping. A mapping with `file` may only have `set` beside it."""
    if isinstance(config, str):
        yield from check_input(config, path)
    elif "file" in config:
        for key, _ in unknown(config, ("file", "set")):
            hint = "write `set: {" + key + ": ...}` to change a key of the file"
            yield Problem(f"`{key}` does not go with `file`", (*path, key), hint, at_key=True)
        yield from check_input(config["file"], (*path, "file"))
    elif "set" in config:
        message = "`set` goes with `file`, which is missing"
        yield Problem(message, (*path, "set"), "write the keys themselves, or add `file: config.json`", at_key=True)


def _check_model(huggingface: HuggingFace) -> Iterator[Problem]:
    cache, attention = huggingface.get("cache", {}), huggingface.get("attention")
    task = tasks.of(huggingface)
    if "class" not in huggingface:
        hint = "name the class, such as LlamaForCausalLM; or write `task: text-generation`"
        yield Problem("the key `class` is missing", _PATH, hint)
    if task is not None and not task.needs_cache:
        yield from _check_single_call(huggingface)
    elif "cache" not in huggingface:
        hint = "add `cache: {max_length: 512}`"
        if task is not None:
            yield Problem(f"`task: {huggingface['task']}` needs a `cache`", (*_PATH, "task"), hint)
        elif "logits" in huggingface:
            yield Problem(f"`logits: {huggingface['logits']}` goes with a `cache`", (*_PATH, "logits"), hint)
        if task is None and attention == CUSTOM_SDPA:
            yield Problem(f"`attention: {attention}` goes with a `cache`", (*_PATH, "attention"), hint)
    yield from _check_pooling(huggingface)
    kind = cache.get("kind", "custom" if "attention" in huggingface else "static")
    yield from _check_source_length(huggingface)
    if task is not None and task.has_encoder:
        yield from _check_encoder_decoder(huggingface)
    elif kind == "external" and task is not None and task.runner != "executorch-llm/v1":
        message = f"`task: {huggingface['task']}` keeps its cache itself"
        yield Problem(message, (*_PATH, "cache", "kind"), "remove `kind`")
    elif attention == CUSTOM_SDPA and kind not in CUSTOM_KINDS:
        hint = "write `kind: custom`"
        yield Problem(f"`attention: custom_sdpa` reads no cache of the kind `{kind}`", (*_PATH, "cache", "kind"), hint)
    elif "kind" in cache and kind in CUSTOM_KINDS and attention not in (None, CUSTOM_SDPA):
        hint = "remove `attention`, or write `kind: static`"
        yield Problem(f"`attention: {attention}` does not read a `{kind}` cache", (*_PATH, "attention"), hint)
    longest, held = cache.get("max_seq_length"), cache.get("max_length")
    if longest is not None and held is not None and longest > held:
        path = (*_PATH, "cache", "max_seq_length")
        yield Problem(f"a call of {longest} tokens does not fit into a cache of {held}", path, f"write {held} or less")
    if kind in _OF_CALLS and longest is None:
        hint = f"such as `max_seq_length: {128 if held is None else min(128, held)}`"
        yield Problem(f"{_OF_CALLS[kind]}, so it needs `max_seq_length`", (*_PATH, "cache"), hint)


def _check_single_call(huggingface: HuggingFace) -> Iterator[Problem]:
    """Checks that the model of a task without a cache has none, and nothing that goes with one."""
    for key in ("cache", "logits"):
        if key in huggingface:
            message = (
                f"`{key}` goes with tasks that write text: `task: {huggingface['task']}` keeps nothing between calls"
            )
            yield Problem(message, (*_PATH, key), f"remove `{key}`", at_key=True)
    if huggingface.get("attention") == CUSTOM_SDPA:
        message = f"`task: {huggingface['task']}` does not compute with `custom_sdpa`, which attends to a cache"
        yield Problem(message, (*_PATH, "attention"), "remove `attention`, or write `attention: sdpa`")


def _check_pooling(huggingface: HuggingFace) -> Iterator[Problem]:
    """Checks that `pooling`, `dense` and `normalize` fit the task, and that the layers of `dense` fit together."""
    for key in ("pooling", "dense", "normalize"):
        if key in huggingface and huggingface.get("task") not in _FEATURES:
            yield Problem(f"`{key}` goes with `task: {_FEATURES[0]}`", (*_PATH, key), at_key=True)
    layers = huggingface.get("dense", [])
    for index, (before, layer) in enumerate(itertools.pairwise(layers), start=1):
        given, taken = before["out_features"], layer["in_features"]
        if given != taken:
            message = f"the layer takes {taken} features, and the one before gives {given}"
            yield Problem(message, (*_PATH, "dense", index, "in_features"), f"write {given}")


def _check_source_length(huggingface: HuggingFace) -> Iterator[Problem]:
    """Checks that `max_source_length` is there if the task needs it, and only if the task reads it."""
    task, has = tasks.of(huggingface), "max_source_length" in huggingface
    if task is not None and task.takes == "tokens" and not has:
        hint = "add `max_source_length: 512`: the largest number of tokens that the encoder takes"
        yield Problem(f"`task: {huggingface['task']}` needs `max_source_length`", (*_PATH, "task"), hint)
    elif has and (task is None or task.takes not in _WITH_LENGTH):
        *others, last = (f"`{name}`" for name, each in tasks.TASKS.items() if each.takes in _WITH_LENGTH)
        message = f"`max_source_length` goes with the tasks {', '.join(others)} and {last}"
        yield Problem(message, (*_PATH, "max_source_length"), at_key=True)
    elif task is not None and task.parts == "speech" and huggingface["max_source_length"] <= tasks.LEAST_SPOKEN:
        least = tasks.LEAST_SPOKEN
        message = f"`task: {huggingface['task']}` speaks texts of {least} tokens or more, of several lengths"
        yield Problem(message, (*_PATH, "max_source_length"), f"write {least + 1} or more")


def _check_encoder_decoder(huggingface: HuggingFace) -> Iterator[Problem]:
    """Checks the keys of a model with an encoder and a decoder."""
    cache, task = huggingface.get("cache", {}), huggingface["task"]
    if cache.get("kind", "static") != "static":
        hint = "remove `kind`"
        message = f"`task: {task}` has a `static` cache, not a `{cache['kind']}` one"
        yield Problem(message, (*_PATH, "cache", "kind"), hint)
    elif huggingface.get("attention") == CUSTOM_SDPA:
        hint = "remove `attention`, or write `attention: sdpa`"
        yield Problem(f"`task: {task}` does not compute with `custom_sdpa`", (*_PATH, "attention"), hint)


def _check_methods(methods: dict[str, Method], huggingface: HuggingFace) -> Iterator[Problem]:
    """Checks that each method has an entry of the task, and that no call is longer than the model is made for."""
    task = tasks.of(huggingface)
    for name, method in methods.items():
        if "program" in method:
            continue
        entry = method.get("entry", "forward")
        if task is not None and entry not in task.entries.values():
            entries = " or ".join(f"`entry: {each}`" for each in task.entries.values())
            message = f"`task: {huggingface['task']}` writes {' and '.join(f'`{each}`' for each in task.entries)}"
            hint = f"name the method like one of them, or write {entries}"
            yield Problem(message, ("methods", name), hint, at_key=True)
            continue
        for index, longest, key in _limits(entry, huggingface):
            yield from _check_lengths(method, index, longest, key, ("methods", name))


def _check_drafts(data: Manifest) -> Iterator[Problem]:
    """Checks that the manifest says how many layers a draft runs."""
    huggingface = data["model"]["huggingface"]
    task, path = tasks.of(huggingface), (*_PATH, "draft_layers")
    has_layers, has_drafts = "draft_layers" in huggingface, task is not None and tasks.DRAFT in task.entries
    of_drafts = (name for name, each in data.get("methods", {}).items() if each.get("entry") == tasks.DRAFT)
    drafting = next(of_drafts, None) if has_drafts else None
    if has_layers and not has_drafts:
        yield Problem("`draft_layers` goes with `task: text-generation`", path, "remove it", at_key=True)
    elif has_layers and drafting is None:
        hint = "add `forward: {}`, `verify: {}` and `draft: {}` to `methods`, or remove `draft_layers`"
        yield Problem("no method drafts", path, hint, at_key=True)
    elif drafting is not None and not has_layers:
        hint = "add `draft_layers` to `huggingface`: such as a third of the layers of the model"
        yield Problem(f"nothing says how many layers `{drafting}` runs", ("methods", drafting), hint, at_key=True)


def _check_shared(data: Manifest) -> Iterator[Problem]:
    """Checks that a method that continues the text of another one has the same cache."""
    huggingface = data["model"]["huggingface"]
    if "cache" not in huggingface or tasks.has_external_cache(huggingface) or data.get("share_mutable_buffers"):
        return
    methods = {name: each for name, each in data.get("methods", {}).items() if _takes_position(each)}
    for name, method in methods.items():
        others = (other for other in methods if other != name and _continues(method, methods[other]))
        of_others = next((f"that of `{other}`" for other in others), None)
        if of_others is not None or method.get("entry") == tasks.DRAFT:
            of_others = of_others or "those of other methods"
            message = f"`{name}` has a cache of its own, and not {of_others}: the methods share no memory"
            hint = "write `share_mutable_buffers: true`"
            if "runner" in data:
                hint = f"remove `{name}`, which the runner does not call; or remove `runner`, and {hint}"
            yield Problem(message, ("methods", name), hint, at_key=True)
            return


def _takes_position(method: Method) -> bool:
    """Whether a method reads a cache: it then takes the position of its first token, int64 [1]."""
    last = tasks.at(method.get("example_inputs"), (-1,)) or {}
    return "program" not in method and (last.get("shape"), last.get("dtype")) == ([1], "int64")


def _continues(method: Method, other: Method) -> bool:
    """Whether a call of a method follows those of another one: it verifies drafts or drafts, or takes only one token
    where the other one takes several. With another adapter, it computes other keys."""
    is_one, other_is_one = (_takes_one(each) for each in (method, other))
    follows = method.get("entry") in (tasks.VERIFY, tasks.DRAFT) or (is_one and not other_is_one)
    return follows and method.get("adapter") == other.get("adapter")


def _takes_one(method: Method) -> bool:
    """Whether a method takes one token in each call."""
    first = tasks.at(method.get("example_inputs"), (0,)) or {}
    length = tasks.at(first.get("shape"), (1,)) if "shape" in first else first.get("length")
    return length == 1 and not tasks.at(method.get("dynamic_shapes"), (0, 1))


def _limits(entry: str, huggingface: HuggingFace) -> Iterator[tuple[int, int, str]]:
    """The inputs of an entry whose second dimension has a limit: their index, the limit, and the key that raises it."""
    longest, source = tasks.longest_call(huggingface), huggingface.get("max_source_length")
    task = tasks.of(huggingface)
    if entry in ("forward", "decode", tasks.VERIFY, tasks.DRAFT) and longest is not None:
        yield 0, longest, "max_seq_length"
    if entry in ("forward", "encode_text") and task is not None and task.takes == "tokens" and source is not None:
        yield 0, source, "max_source_length"
    if entry in ("encode", "decode") and huggingface.get("task") == "seq2seq" and source is not None:
        yield (0 if entry == "encode" else 1), source, "max_source_length"


def _check_lengths(method: Method, index: int, longest: int, key: str, path: DocumentPath) -> Iterator[Problem]:
    """Checks that an input, given by its index, is not longer than the model is made for. `key` is the key of the
    manifest that says the largest number of tokens."""
    places: dict[DocumentPath, object] = {
        ("example_inputs", index, "shape", 1): method.get("example_inputs"),
        ("dynamic_shapes", index, 1, "max"): method.get("dynamic_shapes"),
    }
    for place, inputs in places.items():
        length = tasks.at(inputs, place[1:])
        if isinstance(length, int) and length > longest:
            message = f"a call of {length} tokens is longer than {longest}"
            yield Problem(message, (*path, *place), f"write {longest} or less, or a larger `{key}`")
