"""Runners in a manifest: whether a program has the methods and constants that its runner calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etbuild.errors import DocumentPath, Problem
from etbuild.manifest import tasks
from etbuild.manifest.mappings import mapping

RUNNER_CONSTANTS = (
    "decoder_start_token_id",
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
"""The constant methods of the contracts of runners."""

_OF_TEXT = ("get_eos_ids", "get_max_context_len", "get_max_seq_len", "get_vocab_size", "use_kv_cache")
_NEEDED_CONSTANTS = {
    "executorch-llm/v1": _OF_TEXT,
    "executorch-asr/v1": ("get_eos_ids",),
    "executorch-multimodal/v1": _OF_TEXT,
}
_METHODS = {
    "executorch-asr/v1": {
        "encoder": (1, "one input by position"),
        "text_decoder": (3, "three inputs by position: tokens, the encoder's output, and a position"),
    },
    "executorch-multimodal/v1": {
        "vision_encoder": (1, "one input by position: an image"),
        "token_embedding": (1, "one input by position: tokens"),
        "text_decoder": (2, "two inputs by position: embeddings and a position"),
    },
}
"""What the runners of several methods give to each of them: the number of inputs, and their description."""
_OPTIONAL = "vision_encoder"  # a program may have another encoder, for sounds


def check(data: dict[str, Any]) -> Iterator[Problem]:
    """Yields the problems of the contract of a runner.

    Args:
        data: The manifest, completed. It may break its schema.
    """
    runner = data.get("runner")
    if not isinstance(runner, str) or runner not in _NEEDED_CONSTANTS:
        return
    path: DocumentPath = ("runner",)
    wanted = mapping(mapping(data, "model"), "huggingface")
    task = tasks.of(wanted)
    if task is not None and task.runner != runner:
        message = f"`{runner}` does not run programs of `task: {wanted['task']}`"
        yield Problem(message, path, f"write `runner: {task.runner}`")
        return
    if runner == "executorch-llm/v1":
        yield from _check_text(data, wanted)
    else:
        yield from _check_several(data, _METHODS[runner])
    if wanted and "cache" not in wanted:
        yield Problem("the runner needs a model with a cache", path, "add `cache: {max_length: 512}` to the model")
    for name in () if wanted else _NEEDED_CONSTANTS[runner]:
        if name not in mapping(data, "constant_methods"):
            hint = f"add `{name}` to `constant_methods`"
            yield Problem(f"the runner calls `{name}`, which a model from a factory does not tell", path, hint)


def _check_text(data: dict[str, Any], wanted: dict[str, Any]) -> Iterator[Problem]:
    """Checks what ExecuTorch's text runner needs: one method `forward(tokens, position)` that keeps its own cache."""
    methods = mapping(data, "methods")
    if methods and "forward" not in methods:
        message = f"the runner calls `forward`; the methods are {', '.join(f'`{name}`' for name in methods)}"
        yield Problem(message, ("runner",), "write one method `forward` with a dynamic length")
    elif len(methods) > 1 and data.get("share_mutable_buffers"):
        message = "the runner's methods do not share memory, so a shared cache would give wrong text"
        yield Problem(message, ("share_mutable_buffers",), "write one method `forward` with a dynamic length")
    elif isinstance(methods.get("forward"), dict):
        yield from _check_forward(methods["forward"])
        if "cache" in wanted and {"program", "example_kwargs"} & methods["forward"].keys():
            message = "the runner calls `forward` of the model, with two inputs by position"
            yield Problem(message, ("methods", "forward"), "leave out the inputs: the task writes them")


def _check_several(data: dict[str, Any], called: dict[str, tuple[int, str]]) -> Iterator[Problem]:
    """Checks what a runner of several methods needs. Only `text_decoder` keeps something between two calls. `called`
    has what the runner gives to each method that it calls."""
    methods = mapping(data, "methods")
    for name, (count, given) in called.items():
        method = mapping(methods, name)
        inputs = method.get("example_inputs")
        path: DocumentPath = ("methods", name, "example_inputs" if inputs is not None else "example_kwargs")
        if methods and name not in methods and name != _OPTIONAL:
            message = f"the runner calls `{name}`; the methods are {', '.join(f'`{each}`' for each in methods)}"
            yield Problem(message, ("runner",), f"write the methods {', '.join(f'`{each}`' for each in called)}")
        elif "program" in method:
            message = f"the runner calls `{name}` of the model, and nothing is known about the inputs of a program"
            yield Problem(message, ("methods", name, "program"), "leave out `program`: the task writes the method")
        elif "example_kwargs" in method or (isinstance(inputs, list) and len(inputs) != count):
            yield Problem(f"the runner calls `{name}` with {given}", path)
        elif isinstance(inputs, list):
            yield from _check_integers(name, given, inputs)


def _check_integers(name: str, given: str, inputs: list[Any]) -> Iterator[Problem]:
    """Checks the tokens and the position that a runner gives to a method: int64 [1, seq] and int64 [1]."""
    first, of_model = (tasks.at(inputs[0], (key,)) for key in ("shape", tasks.OF_MODEL))
    is_short = isinstance(first, list) and len(first) < 2
    if "tokens" not in given and (is_short or (name == "text_decoder" and first is None and of_model is None)):
        message = (
            f"the first input of `{name}` needs a `shape` of two dimensions or more: the runner calls it with {given}"
        )
        yield Problem(message, ("methods", name, "example_inputs", 0))
        return
    wanted = [(0, 2, "[1, seq]")] if "tokens" in given else []
    wanted += [(len(inputs) - 1, 1, "[1]")] if name == "text_decoder" else []
    for index, rank, shown in wanted:
        shape, dtype = tasks.at(inputs[index], ("shape",)), tasks.at(inputs[index], ("dtype",))
        fits = dtype == "int64" and _ranks([shape]) == [rank] and shape[0] == 1
        if not fits and tasks.at(inputs[index], (tasks.OF_MODEL,)) is None:
            what = "tokens" if rank == 2 else "a position"
            message = f"the runner calls `{name}` with {what}, int64 {shown}"
            yield Problem(message, ("methods", name, "example_inputs", index))


def _check_forward(forward: dict[str, Any]) -> Iterator[Problem]:
    """Checks that the inputs of `forward` are those of the runner. Those of an exported program are not known."""
    path: DocumentPath = ("methods", "forward", "example_inputs")
    inputs = forward.get("example_inputs")
    if "program" in forward or not isinstance(inputs, list):
        return
    shapes = [tasks.at(entry, ("shape",)) for entry in inputs]
    dtypes = [tasks.at(entry, ("dtype",)) for entry in inputs]
    fits = dtypes == ["int64", "int64"] and _ranks(shapes) == [2, 1] and shapes[0][0] == 1 and shapes[1] == [1]
    if not fits:
        message = "the runner calls `forward` with tokens, int64 [1, seq], and a position, int64 [1]"
        yield Problem(message, path, "write [{shape: [1, 8], dtype: int64}, {shape: [1], dtype: int64}]")


def _ranks(shapes: list[Any]) -> list[int | None]:
    return [len(shape) if isinstance(shape, list) else None for shape in shapes]
