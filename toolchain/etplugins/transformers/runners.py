"""Runners in a manifest: whether a program has the methods and constants that its runner calls."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import DocumentPath, Problem
from etbuild.manifest.sections import ExampleInput, Manifest, Method
from etplugins.transformers import tasks
from etplugins.transformers.sections import HuggingFace

CONSTANTS = (
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
"""For each method that runners of several methods call: the number of its inputs, and their description."""
_OPTIONAL = "vision_encoder"  # a program may have another encoder, for sounds


def check(data: Manifest) -> Iterator[Problem]:
    """Yields the problems of the contract of the manifest's runner. The manifest is completed."""
    runner, methods = data["runner"], data.get("methods", {})
    model = data.get("model", {})
    huggingface = model.get("huggingface") or HuggingFace()
    task = tasks.of(huggingface)
    if task is not None and task.runner != runner:
        message = f"`{runner}` does not run programs of `task: {huggingface['task']}`"
        hint = "remove `runner`" if task.runner is None else f"write `runner: {task.runner}`"
        yield Problem(message, ("runner",), hint)
        return
    if tasks.has_external_cache(huggingface):
        message = f"`{runner}` gives a method no cache: with `kind: external`, keys and values are inputs and outputs"
        yield Problem(message, ("runner",), "remove `runner`, or write another `kind`")
        return
    if runner in _METHODS:
        yield from _check_several(methods, _METHODS[runner])
    else:
        yield from _check_text(methods, data.get("share_mutable_buffers", False), "cache" in huggingface)
    if "huggingface" in model and "cache" not in huggingface:
        hint = "add `cache: {max_length: 512}` to the model"
        yield Problem("the runner needs a model with a cache", ("runner",), hint)
    for name in () if "huggingface" in model else _NEEDED_CONSTANTS[runner]:
        if name not in data.get("constant_methods", {}):
            hint = f"add `{name}` to `constant_methods`"
            yield Problem(
                f"the runner calls `{name}`, which cannot be read from a model of a factory", ("runner",), hint
            )


def _check_text(methods: dict[str, Method], share_buffers: bool, has_cache: bool) -> Iterator[Problem]:
    """Checks what ExecuTorch's text runner needs: one method `forward(tokens, position)` that keeps its own cache."""
    if methods and "forward" not in methods:
        message = f"the runner calls `forward`; the methods are {', '.join(f'`{name}`' for name in methods)}"
        yield Problem(message, ("runner",), "write one method `forward` with a dynamic length")
    elif len(methods) > 1 and share_buffers:
        message = "the runner's methods do not share memory, so a shared cache would give wrong text"
        yield Problem(message, ("share_mutable_buffers",), "write one method `forward` with a dynamic length")
    elif methods:
        forward = methods["forward"]
        if "program" not in forward and "example_inputs" in forward:  # the inputs of a program are not known
            yield from _check_forward(forward["example_inputs"])
        if has_cache and {"program", "example_kwargs"} & forward.keys():
            message = "the runner calls `forward` of the model, with two inputs by position"
            yield Problem(message, ("methods", "forward"), "leave out the inputs: the task writes them")


def _check_several(methods: dict[str, Method], called: dict[str, tuple[int, str]]) -> Iterator[Problem]:
    """Checks what a runner of several methods needs. Only `text_decoder` keeps a state between two calls. `called` has
    what the runner gives to each method that it calls."""
    for name, (count, given) in called.items():
        method = methods.get(name, {})
        inputs = method.get("example_inputs")
        path: DocumentPath = ("methods", name, "example_inputs" if inputs is not None else "example_kwargs")
        if methods and name not in methods and name != _OPTIONAL:
            message = f"the runner calls `{name}`; the methods are {', '.join(f'`{each}`' for each in methods)}"
            yield Problem(message, ("runner",), f"write the methods {', '.join(f'`{each}`' for each in called)}")
        elif "program" in method:
            message = f"the runner calls `{name}` of the model, and nothing is known about the inputs of a program"
            yield Problem(message, ("methods", name, "program"), "leave out `program`: the task writes the method")
        elif "example_kwargs" in method or (inputs is not None and len(inputs) != count):
            yield Problem(f"the runner calls `{name}` with {given}", path)
        elif inputs is not None:
            yield from _check_integers(name, given, inputs)


def _check_integers(name: str, given: str, inputs: list[ExampleInput]) -> Iterator[Problem]:
    """Checks the tokens and the position that a runner gives to a method: int64 [1, seq] and int64 [1]."""
    first = inputs[0].get("shape")
    unknown = first is None and "of_model" not in inputs[0]
    if "tokens" not in given and ((first is not None and len(first) < 2) or (name == "text_decoder" and unknown)):
        message = (
            f"the first input of `{name}` needs a `shape` of two dimensions or more: the runner calls it with {given}"
        )
        yield Problem(message, ("methods", name, "example_inputs", 0))
        return
    integers = [(0, 2, "[1, seq]")] if "tokens" in given else []
    integers += [(len(inputs) - 1, 1, "[1]")] if name == "text_decoder" else []
    for index, rank, shown in integers:
        if not _is_int64(inputs[index], rank) and "of_model" not in inputs[index]:
            what = "tokens" if rank == 2 else "a position"
            message = f"the runner calls `{name}` with {what}, int64 {shown}"
            yield Problem(message, ("methods", name, "example_inputs", index))


def _check_forward(inputs: list[ExampleInput]) -> Iterator[Problem]:
    """Checks that the inputs of `forward` are those of the runner."""
    if len(inputs) != 2 or not _is_int64(inputs[0], 2) or not _is_int64(inputs[1], 1):
        message = "the runner calls `forward` with tokens, int64 [1, seq], and a position, int64 [1]"
        hint = "write [{shape: [1, 8], dtype: int64}, {shape: [1], dtype: int64}]"
        yield Problem(message, ("methods", "forward", "example_inputs"), hint)


def _is_int64(example: ExampleInput, rank: int) -> bool:
    """Whether an input is int64 of some dimensions, the first of size 1."""
    shape = example.get("shape", [])
    return example.get("dtype") == "int64" and len(shape) == rank and shape[0] == 1
