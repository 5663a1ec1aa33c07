"""Language models in a manifest: what a task fills in, the caches of decoders, and the contract of a runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from etbuild.errors import DocumentPath, Problem
from etbuild.manifest.yaml_document import mapping

CUSTOM_SDPA = "custom_sdpa"
CUSTOM_KINDS = ("custom", "ring", "quantized")
"""The caches that hold keys and values as `llama::custom_sdpa` takes them."""

_OPERATORS = "executorch.extension.llm.custom_ops.custom_ops"  # registers ExecuTorch's operators for language models
_PATH: DocumentPath = ("model", "huggingface")
RUNNER_CONSTANTS = (
    "enable_dynamic_shape",
    "get_bos_id",
    "get_eos_ids",
    "get_max_context_len",
    "get_max_seq_len",
    "get_n_layers",
    "get_vocab_size",
    "use_kv_cache",
    "use_sdpa_with_kv_cache",
)
"""The constant methods of the contract of a runner."""

_NEEDED_CONSTANTS = ("get_eos_ids", "get_max_context_len", "get_max_seq_len", "get_vocab_size", "use_kv_cache")
_DTYPE = {"dtype": "int64", "fill": "zeros"}


def completed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with what its task writes: the class of the model, and methods with their inputs.

    Args:
        manifest: The manifest. It may break its schema: what does not fit is left as it is.
    """
    model = mapping(manifest, "model")
    wanted = mapping(model, "huggingface")
    if "task" not in wanted or not isinstance(manifest.get("methods", {}), dict):
        return manifest
    wanted = {"class": "AutoModelForCausalLM", "logits": "last", **wanted}
    methods = manifest.get("methods") or {"forward": {}}
    longest = _longest_call(mapping(wanted, "cache")) or 1
    methods = {name: _with_inputs(name, method, longest) for name, method in methods.items()}
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


def _longest_call(cache: dict[str, Any]) -> int | None:
    """The largest number of tokens in one call; None if the manifest does not say it, or breaks its schema."""
    longest = cache.get("max_seq_length", cache.get("max_length"))
    return longest if isinstance(longest, int) and longest > 0 else None


def _with_inputs(name: str, method: Any, longest: int) -> Any:
    """The method with the inputs that a decoder with a cache takes, if it has none of its own.

    `decode` takes one token in each call, and every other method any number of them up to the longest call.
    """
    if not isinstance(method, dict) or {"example_inputs", "example_kwargs", "program"} & method.keys():
        return method
    length = 1 if name == "decode" else min(longest, 8)
    inputs = [{"shape": [1, length], **_DTYPE}, {"shape": [1], **_DTYPE}]
    shapes = [[None, {"dim": "seq", "min": 1, "max": longest}], None]
    return {"example_inputs": inputs, **({"dynamic_shapes": shapes} if length > 1 else {}), **method}


def check(data: dict[str, Any]) -> Iterator[Problem]:
    """Yields the problems of a model's cache and attention, and of the contract of a runner.

    Args:
        data: The manifest, completed. It may break its schema.
    """
    wanted = mapping(mapping(data, "model"), "huggingface")
    if isinstance(mapping(data, "model").get("huggingface"), dict):
        yield from _check_model(wanted)
        longest = _longest_call(mapping(wanted, "cache"))
        for name, method in mapping(data, "methods").items():
            yield from _check_lengths(method, longest, ("methods", name))
    if "runner" in data:
        yield from _check_runner(data, wanted)


def _check_model(wanted: dict[str, Any]) -> Iterator[Problem]:
    cache = mapping(wanted, "cache")
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
    if attention == CUSTOM_SDPA and kind == "static":
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


def _check_lengths(method: Any, longest: int | None, path: DocumentPath) -> Iterator[Problem]:
    """Checks that the calls of a method are not longer than the longest one that the cache is made for."""
    if not isinstance(method, dict) or longest is None:
        return
    hint = f"write {longest} or less, or a larger `max_seq_length`"
    places: tuple[tuple[str, tuple[int | str, ...]], ...] = (
        ("example_inputs", (0, "shape", 1)),
        ("dynamic_shapes", (0, 1, "max")),
    )
    for key, place in places:
        length = _at(method.get(key), place)
        if isinstance(length, int) and length > longest:
            yield Problem(f"a call of {length} tokens is longer than {longest}", (*path, key, *place), hint)


def _at(value: Any, place: Sequence[int | str]) -> Any:
    """The part of a value at a place; None if there is none."""
    for key in place:
        try:
            value = value[key]
        except (TypeError, KeyError, IndexError):
            return None
    return value


def _check_runner(data: dict[str, Any], wanted: dict[str, Any]) -> Iterator[Problem]:
    """Checks what ExecuTorch's text runner needs: one method `forward(tokens, position)` that keeps its own cache."""
    path: DocumentPath = ("runner",)
    methods, constants = mapping(data, "methods"), mapping(data, "constant_methods")
    if methods and "forward" not in methods:
        message = f"the runner calls `forward`; the methods are {', '.join(f'`{name}`' for name in methods)}"
        yield Problem(message, path, "write one method `forward` with a dynamic length")
    elif len(methods) > 1 and data.get("share_mutable_buffers"):
        message = "the runner's methods do not share memory, so a shared cache would give wrong text"
        yield Problem(message, ("share_mutable_buffers",), "write one method `forward` with a dynamic length")
    elif isinstance(methods.get("forward"), dict):
        yield from _check_forward(methods["forward"])
        if "cache" in wanted and {"program", "example_kwargs"} & methods["forward"].keys():
            message = "the runner calls `forward` of the model, with two inputs by position"
            yield Problem(message, ("methods", "forward"), "leave out the inputs: the task writes them")
    if "cache" in wanted:
        return
    if wanted:
        yield Problem("the runner needs a model with a cache", path, "add `cache: {max_length: 512}` to the model")
    for name in _NEEDED_CONSTANTS:
        if not wanted and name not in constants:
            hint = f"add `{name}` to `constant_methods`"
            yield Problem(f"the runner calls `{name}`, which a model from a factory does not tell", path, hint)


def _check_forward(forward: dict[str, Any]) -> Iterator[Problem]:
    """Checks that the inputs of `forward` are those of the runner. Those of an exported program are not known."""
    path: DocumentPath = ("methods", "forward", "example_inputs")
    inputs = forward.get("example_inputs")
    if "program" in forward or not isinstance(inputs, list):
        return
    shapes = [_at(entry, ("shape",)) for entry in inputs]
    dtypes = [_at(entry, ("dtype",)) for entry in inputs]
    fits = dtypes == ["int64", "int64"] and _ranks(shapes) == [2, 1] and shapes[0][0] == 1 and shapes[1] == [1]
    if not fits:
        message = "the runner calls `forward` with tokens, int64 [1, seq], and a position, int64 [1]"
        yield Problem(message, path, "write [{shape: [1, 8], dtype: int64}, {shape: [1], dtype: int64}]")


def _ranks(shapes: list[Any]) -> list[int | None]:
    return [len(shape) if isinstance(shape, list) else None for shape in shapes]
