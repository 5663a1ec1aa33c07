"""Language models in a manifest: what a task and a cache fill in, and the checks of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etbuild.errors import DocumentPath, Problem
from etbuild.manifest import adapters, tasks
from etbuild.manifest.mappings import mapping

CUSTOM_SDPA = "custom_sdpa"
CUSTOM_KINDS = ("custom", "ring", "quantized")
"""The caches that hold keys and values as `llama::custom_sdpa` takes them."""

_OPERATORS = "executorch.extension.llm.custom_ops.custom_ops"  # registers ExecuTorch's operators for language models
_PATH: DocumentPath = ("model", "huggingface")


def completed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with what its task writes: the class of the model, and methods with their inputs.

    Args:
        manifest: The manifest. It may break its schema: what does not fit is left as it is.
    """
    model = mapping(manifest, "model")
    wanted = mapping(model, "huggingface")
    task, methods = tasks.of(wanted), manifest.get("methods")
    if task is None or not isinstance(methods, dict | None):
        return manifest
    if task is tasks.TASKS["text-generation"]:
        methods = methods or adapters.methods(mapping(model, "adapters"))
    wanted = {"class": task.model_class, "logits": "last", **wanted}
    methods = tasks.completed(methods, task, wanted)
    return {**manifest, "model": {**model, "huggingface": wanted}, "methods": methods}


def normalized(manifest: dict[str, Any]) -> dict[str, Any]:
    """A checked manifest with what its model and its task ask for, but do not say: the attention of a cache, and the
    operators of both."""
    manifest = completed(manifest)
    wanted = mapping(mapping(manifest, "model"), "huggingface")
    kind, attention = mapping(wanted, "cache").get("kind"), wanted.get("attention")
    if attention != CUSTOM_SDPA and kind not in CUSTOM_KINDS:
        return manifest
    cache = {**wanted["cache"], "kind": kind or CUSTOM_KINDS[0]}
    huggingface = {**wanted, "attention": CUSTOM_SDPA, "cache": cache}
    operators = mapping(manifest, "custom_ops")
    modules = operators.get("modules", [])
    return {
        **manifest,
        "model": {**manifest["model"], "huggingface": huggingface},
        "custom_ops": {**operators, "modules": [*modules, *({_OPERATORS} - set(modules))]},
    }


def check(data: dict[str, Any]) -> Iterator[Problem]:
    """Yields the problems of a model's task, cache and attention.

    Args:
        data: The manifest, completed. It may break its schema.
    """
    wanted = mapping(mapping(data, "model"), "huggingface")
    if isinstance(mapping(data, "model").get("huggingface"), dict):
        yield from _check_model(wanted)
        yield from _check_methods(data, wanted)


def _check_model(wanted: dict[str, Any]) -> Iterator[Problem]:
    cache = mapping(wanted, "cache")
    task = tasks.of(wanted)
    if "class" not in wanted:
        hint = "name the class, such as LlamaForCausalLM; or write `task: text-generation`"
        yield Problem("the key `class` is missing", _PATH, hint)
    if "cache" not in wanted:
        hint = "add `cache: {max_length: 512}`"
        if "task" in wanted:
            yield Problem("a `task` needs a `cache`", (*_PATH, "task"), hint)
        for key in ("logits", *(["attention"] if wanted.get("attention") == CUSTOM_SDPA else [])):
            if key in wanted and "task" not in wanted:
                yield Problem(f"`{key}: {wanted[key]}` goes with a `cache`", (*_PATH, key), hint)
    kind, attention = cache.get("kind", "custom" if "attention" in wanted else "static"), wanted.get("attention")
    yield from _check_source_length(wanted, task)
    if task is not None and task.has_encoder:
        yield from _check_encoder_decoder(wanted)
    elif attention == CUSTOM_SDPA and kind == "static":
        hint = "write `kind: custom`"
        yield Problem("`attention: custom_sdpa` does not read a `static` cache", (*_PATH, "cache", "kind"), hint)
    elif "kind" in cache and kind in CUSTOM_KINDS and attention not in (None, CUSTOM_SDPA):
        hint = "remove `attention`, or write `kind: static`"
        yield Problem(f"`attention: {attention}` does not read a `{kind}` cache", (*_PATH, "attention"), hint)
    longest, held = cache.get("max_seq_length"), cache.get("max_length")
    if isinstance(longest, int) and isinstance(held, int) and longest > held:
        path = (*_PATH, "cache", "max_seq_length")
        yield Problem(f"a call of {longest} tokens does not fit into a cache of {held}", path, f"write {held} or less")
    if kind == "ring" and longest is None:
        hint = f"such as `max_seq_length: {min(128, held) if isinstance(held, int) else 128}`"
        message = "a `ring` holds a window and the tokens of one call, so it needs `max_seq_length`"
        yield Problem(message, (*_PATH, "cache"), hint)


def _check_source_length(wanted: dict[str, Any], task: tasks.Task | None) -> Iterator[Problem]:
    """Checks that the number of tokens of an encoder is there if it is needed, and only then."""
    has, needs = "max_source_length" in wanted, wanted.get("task") == "seq2seq"
    if needs and not has:
        hint = "add `max_source_length: 512`: the largest number of tokens that the encoder takes"
        yield Problem("`task: seq2seq` needs `max_source_length`", (*_PATH, "task"), hint)
    elif has and not needs:
        yield Problem("`max_source_length` goes with `task: seq2seq`", (*_PATH, "max_source_length"), at_key=True)


def _check_encoder_decoder(wanted: dict[str, Any]) -> Iterator[Problem]:
    """Checks the keys of a model with an encoder and a decoder."""
    cache, task = mapping(wanted, "cache"), wanted["task"]
    if cache.get("kind", "static") != "static":
        hint = "remove `kind`"
        yield Problem(
            f"`task: {task}` has a `static` cache, not a `{cache['kind']}` one", (*_PATH, "cache", "kind"), hint
        )
    elif wanted.get("attention") == CUSTOM_SDPA:
        hint = "remove `attention`, or write `attention: sdpa`"
        yield Problem(f"`task: {task}` does not compute with `custom_sdpa`", (*_PATH, "attention"), hint)


def _check_methods(data: dict[str, Any], wanted: dict[str, Any]) -> Iterator[Problem]:
    """Checks that each method has an entry of the task, and that no call is longer than the model is made for."""
    task = tasks.of(wanted)
    for name, method in mapping(data, "methods").items():
        if not isinstance(method, dict) or "program" in method:
            continue
        entry = method.get("entry", "forward")
        if task is not None and entry not in task.entries.values():
            entries = " or ".join(f"`entry: {each}`" for each in task.entries.values())
            message = f"`task: {wanted['task']}` writes {' and '.join(f'`{each}`' for each in task.entries)}"
            hint = f"name the method like one of them, or write {entries}"
            yield Problem(message, ("methods", name), hint, at_key=True)
            continue
        for index, longest, key in _limits(entry, wanted):
            yield from _check_lengths(method, index, longest, key, ("methods", name))


def _limits(entry: str, wanted: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """The inputs of an entry whose second dimension has a limit: their index, the limit, and the key that raises it."""
    longest, source = tasks.longest_call(mapping(wanted, "cache")), wanted.get("max_source_length")
    if entry in ("forward", "decode") and longest is not None:
        yield 0, longest, "max_seq_length"
    if entry in ("encode", "decode") and wanted.get("task") == "seq2seq" and isinstance(source, int):
        yield (0 if entry == "encode" else 1), source, "max_source_length"


def _check_lengths(method: dict[str, Any], index: int, longest: int, key: str, path: DocumentPath) -> Iterator[Problem]:
    """Checks that an input, given by its index, is not longer than the model is made for. `key` is the key of the
    manifest that says the largest number of tokens."""
    places: tuple[tuple[str, tuple[int | str, ...]], ...] = (
        ("example_inputs", (index, "shape", 1)),
        ("dynamic_shapes", (index, 1, "max")),
    )
    for inputs, place in places:
        length = tasks.at(method.get(inputs), place)
        if isinstance(length, int) and length > longest:
            message = f"a call of {length} tokens is longer than {longest}"
            yield Problem(message, (*path, inputs, *place), f"write {longest} or less, or a larger `{key}`")
