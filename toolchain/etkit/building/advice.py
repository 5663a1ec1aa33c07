"""Says what to write for mistakes that people who know PyTorch make, where the error itself does not.

Only what is printed changes: an error that another program reads has the hint that was raised with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from etbuild.errors import Problem, did_you_mean

_OTHER_WORDS = {
    "backend": "partitioners",
    "backends": "partitioners",
    "checkpoint": "weights",
    "delegate": "partitioners",
    "dynamic_axes": "dynamic_shapes",
    "dynamic_dims": "dynamic_shapes",
    "file_size": "max_program_bytes",
    "input": "example_inputs",
    "inputs": "example_inputs",
    "input_shape": "example_inputs",
    "max_memory": "max_memory_bytes",
    "max_size": "max_program_bytes",
    "quantization": "quantize",
    "quantizer": "quantizers",
    "sample_inputs": "example_inputs",
    "size": "max_program_bytes",
    "state_dict": "weights",
    "CoreMLPartitioner": "coreml",
    "VulkanPartitioner": "vulkan",
    "XnnpackPartitioner": "xnnpack",
}
"""Words of others for words of ours."""


@dataclass(frozen=True)
class _Advice:
    """A hint for messages that fit a pattern, and perhaps for places whose last keys are these."""

    message: str
    hint: str
    keys: tuple[str, ...] = ()


_ADVICE = (
    _Advice(
        r"(must be at least 1|expected a whole number), got",
        "write the size of the example; `dynamic_shapes` says which sizes may change",
        ("shape",),
    ),
    _Advice(
        r"`\d+` is not a string",
        "write a list with an entry for each input, and in it one for each dimension: "
        "[[null, {dim: seq, min: 2, max: 128}], null]",
        ("dynamic_shapes",),
    ),
    _Advice(r"must be at most 1, got", "it is a share, such as 0.95 for 95 %", ("min_delegated",)),
    _Advice(r"expected a list, got \{", "name inputs in `example_kwargs`: {x: {shape: [1, 8]}}", ("example_inputs",)),
    _Advice(r"expected a mapping, got \[\{", "a manifest begins with `schema: executorch-model/v1`, and has no `- `"),
    _Advice(r"returned NoneType, not a torch.nn.Module", "does its last line lack `return`?"),
    _Advice(
        r"returned a dict with Tensor .*, not a torch.nn.Module",
        "return the module, and name its weights in `model.weights`",
    ),
    _Advice(r"missing \d+ required positional arguments?: (.*)", r"give them in `model.kwargs`: {{1}: ...}"),
    _Advice(r"got an unexpected keyword argument '(\w+)'", "`model.kwargs` gives it: is the name right?"),
    _Advice(r"before Module\.__init__\(\) call", "call `super().__init__()` first in `__init__`"),
    _Advice(
        r"not compiled with CUDA|No CUDA GPUs|Found no NVIDIA driver",
        'a build runs on the CPU: leave out `.cuda()` and `device`, and load with `map_location="cpu"`',
    ),
    _Advice(
        r"\.numpy\(\) is not supported|Can't call numpy\(\)|can't convert .* to numpy",
        "an export records operators of PyTorch only: compute with tensors, without `.numpy()`",
    ),
    _Advice(
        r"mat1 and mat2 shapes cannot be multiplied|size mismatch|expected input\[.*\] to have \d+ channels",
        "the example inputs do not fit the layer in this line: change `shape`, or the size of the layer",
    ),
    _Advice(
        r"mat1 and mat2 must have the same dtype|expected scalar type|weight type .* should be the same",
        "give the example inputs the dtype of the weights: `dtype`",
    ),
    _Advice(
        r"tensors used as indices must be|following scalar types: Long, Int|xpected dtype int64 for index"
        r"|only applicable to index tensor",
        "an input of integers needs its dtype: `{shape: [...], dtype: int64}`, or `--input NAME=int64[...]`",
    ),
    _Advice(
        r"supports boolean masks|expected condition to be a boolean|mask tensor can only be bool|must be bool or float",
        "a mask needs its dtype: `{shape: [...], dtype: bool}`, or `--input NAME=bool[...]`",
    ),
    _Advice(
        r"operator torchvision::\w+ does not exist|Could not load this library: .*torchaudio",
        "it was built for another PyTorch: take all packages of PyTorch from one index, as the page `Install` shows",
    ),
    _Advice(
        r"--input .*: expected sizes",
        "write the size of an example; for a size that may change, add `--save FILE`, and write `dynamic_shapes` there",
    ),
    _Advice(r"can't allocate memory: you tried", "it is larger than the memory here: write a smaller `shape`"),
    _Advice(r"SystemExit: ", "the factory calls `sys.exit`: leave it out, or move it to the script that calls it"),
    _Advice(
        r"'(?:[A-Z]\w*(?<!NoneType)(?<!Tensor)(?<!Size))' object has no attribute '(\w+)'",
        "set `self.{1}` in `__init__`, or correct its name; state that a method keeps is a buffer",
    ),
    _Advice(r"argument '\w+' \(position \d+\) must be Tensor, not", "give this input a `shape`: then it is a tensor"),
    _Advice(r"deserializing header|IncompleteBuffer", "the file is damaged or incomplete: get it again"),
    _Advice(r"Weights only load failed", "reading it would run code: save `module.state_dict()` as safetensors"),
    _Advice(r"has the shape .*, and the program takes", "give numbers in this shape, or `FILE.npy`"),
    _Advice(r"takes \d+ inputs, not", "`etbuild inspect` shows the inputs of each method"),
    _Advice(r"config\.json: cannot be read: No such file", "name a folder of Hugging Face, or `hub:OWNER/NAME`"),
    _Advice(
        r"neither a manifest nor a function|^[A-Za-z_][\w.]*:[A-Za-z_]\w*: cannot read the file: No such file",
        "write a source with a function that returns the model, and build it: `etbuild build model.py:create`",
    ),
    _Advice(r"\.ya?ml: neither a \.pte nor a \.ptd", "it is a manifest: `etbuild build` makes the program"),
    _Advice(r"\.pte: is a program, not a manifest", "`etbuild test MANIFEST --program FILE` tests it"),
)


def advised(problems: Iterable[Problem]) -> list[Problem]:
    """The problems with hints, where something is known to write and the problem does not say it."""
    return [_advised(problem) for problem in problems]


def _advised(problem: Problem) -> Problem:
    hint, own = _of_file(problem) or _of_package(problem) or _of_message(problem), problem.hint
    if all((each or "").startswith("write ") for each in (hint, own)):
        own = None  # nobody can write both, and the advice knows more
    word = _of_word(problem)
    said = "\n".join(filter(None, [word, own, None if hint in (own or "").split("\n") else hint]))
    return replace(problem, hint=said or None)


def _of_message(problem: Problem) -> str | None:
    """The hint for a message."""
    keys = {str(key) for key in (problem.path or ())[-2:]}
    for each in _ADVICE:
        found = re.search(each.message, problem.message)
        if found is not None and (not each.keys or keys & {*each.keys}):
            names = found[1].replace("'", "").replace(" and ", ", ") if found.groups() else ""
            return each.hint.replace("{1}", names)
    return None


def _of_word(problem: Problem) -> str | None:
    """The word that we have for an unknown one, if the problem lists it among the known ones."""
    found = re.match(r"unknown (?:key|backend) `(\w+)`", problem.message)
    ours = _OTHER_WORDS.get(found[1]) if found is not None else None
    known = re.search(r"known: ([^)]*)", problem.hint or "")
    return f"did you mean `{ours}`?" if ours and known and ours in known[1].split(", ") else None


def _of_package(problem: Problem) -> str | None:
    """The source to write for a factory of an installed package, such as torchvision."""
    found = re.search(r"the module `([\w.]+)` is not among the declared sources", problem.message)
    name = found[1].partition(".")[0] if found is not None else ""
    try:
        spec = find_spec(name)
    except ValueError:  # an empty name, or a module such as `__main__` that was not found by its name
        spec = None
    if spec is None:
        return None
    return (
        f"`{name}` is an installed package: write a source of yours with a function `create` that imports from it and "
        "returns the model, and name `create`"
    )


def _of_file(problem: Problem) -> str | None:
    """The manifests beside one that is not there."""
    found = re.match(r"(.*\.ya?ml): cannot read the file: No such file", problem.message)
    if found is None:
        return None
    others = [path.name for pattern in ("*.yaml", "*.yml") for path in Path(found[1]).parent.glob(pattern)]
    return did_you_mean(Path(found[1]).name, others)
