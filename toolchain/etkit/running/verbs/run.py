"""`etbuild run`: runs a method of a program in ExecuTorch's runtime."""

from __future__ import annotations

import argparse
import io
import json
import math
import struct
import sys
import tempfile
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_value
from etbuild.errors import BuildError, InputError
from etbuild.exception_text import hints
from etkit.program import add_named_data

if TYPE_CHECKING:
    import torch

    from etplugins.runtime.program_files import ProgramFiles

_SOUND, _RATE, _LOUDEST = ".wav", "get_sampling_rate", 2**15 - 1
_PICTURE, _LABELS = ".svg", "get_labels"
_CONSTANTS = {_SOUND: _RATE, _PICTURE: _LABELS}
"""The constant method that a file needs, by the end of its name."""
_SHOWN = 32  # of an output with more elements, only the first and the last are shown


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "run",
        "run a method of a program in ExecuTorch's runtime",
        "An input is JSON such as '[[1, 2]]', FILE.npy, FILE.pt or FILE.safetensors:KEY. Missing inputs are 0, 1, 2, "
        "... in the largest sizes that the method takes. METHOD(INPUT, ...) stands for the outputs of another method, "
        "METHOD(...)[N] for one of them, and [METHOD(...), METHOD(...)] for outputs that are joined.",
    )
    add_path(parser, "PROGRAM", "the .pte")
    add_value(parser, "METHOD", "the method (default: the only one)", nargs="?")
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="its inputs, in the order of the program")
    add_named_data(parser, "the program")
    add_path(
        parser,
        "-o, --out FILE",
        "write the outputs to FILE.safetensors, a sound to FILE.wav, or an image with what was found in it to FILE.svg",
        dest="output",
    )
    add_flag(parser, "--json", "print the outputs as JSON")


def run(options: argparse.Namespace) -> int:
    """Runs the method, and prints or writes its outputs."""
    from etplugins.runtime import program_files

    suffix = ".safetensors" if options.output is None else options.output.suffix
    if suffix not in (".safetensors", *_CONSTANTS):
        ends = f".safetensors, with {_SOUND} for a sound, or with {_PICTURE} for a picture"
        raise InputError.of(f"-o {options.output}: the name must end with {ends}")
    options.restart()  # then a crash of the runtime is reported as an error
    files = program_files.read(options.program, options.named_data)
    method, given = _method_and_inputs(files, options)
    facts = files.method(method)
    import torch

    torch.set_num_threads(1)
    from etkit import arguments
    from etkit.running import calls
    from etplugins.runtime import child
    from etplugins.runtime.session import Session

    expanded = calls.expanded(files, given)
    inputs = arguments.inputs(method, facts, expanded)
    named = _CONSTANTS.get(suffix, "")
    has_constant = named in files.facts["methods"] and not files.method(named)["inputs"]

    def work() -> tuple[list[tuple[list[Any], list[Any]]], object]:
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(files, Path(scratch))
            found = [(each.inputs, each.outputs) for each in calls.called(method, inputs, session.call)]
            return found, next(iter(session.call(named, [])), None) if has_constant else None

    with _counted(inputs[len(expanded) :]):
        made, constant = child.result(f"running {method}", work)
    inputs, outputs = made[-1]
    if suffix == _SOUND:
        _write_sound(options.output, next(iter(outputs), None), constant)
    elif suffix == _PICTURE:
        from etbuild.files.digests import file_digest

        _write_picture(options.output, made, constant, file_digest(options.program))
    elif options.output is not None:
        _write(options.output, outputs)
    if options.json:
        print(json.dumps([_as_json(value) for value in outputs], indent=2))
    elif options.output is None:
        torch.set_printoptions(threshold=_SHOWN)
        shown = ", ".join(str(list(each.shape)) if isinstance(each, torch.Tensor) else repr(each) for each in inputs)
        print("\n".join([f"{options.program.name} {method}({shown})", *map(_text, outputs)]))
    return 0


def _method_and_inputs(files: ProgramFiles, options: argparse.Namespace) -> tuple[str, list[str]]:
    """The method, and its inputs as they are given. The first of these is where a method could be, if none is named."""
    word: str | None = options.method
    if word is None or word in files.facts["methods"] or word.isidentifier():
        return word or files.only_method(), options.inputs
    return files.only_method(), [word, *options.inputs]


@contextmanager
def _counted(inputs: list[Any]) -> Iterator[None]:
    """Says of an error which inputs were not given: numbers that count are no indices, for example."""
    try:
        yield
    except BuildError as error:
        said = "inputs that are not given count from 0 on: give those that mean something" if inputs else None
        raise BuildError([replace(each, hint=hints(each.hint, said)) for each in error.problems]) from error


def _text(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}\n{value}"


def _as_json(value: Any) -> Any:
    """An output as JSON data. Numbers that JSON lacks become texts, such as "nan"."""
    if not hasattr(value, "dtype"):
        return _finite(value)
    dtype = str(value.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(value.shape), "values": _finite(value.tolist())}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write_sound(path: Path, sound: Any, rate: object) -> None:
    """Writes a sound of 16 bits, from numbers between -1 and 1: [samples], [1, samples] or [1, channels, samples].

    Raises:
        InputError: The output is not one sound of finite floats; or `rate`, the samples of a second, is not known, or
            none that a file can hold.
    """
    from etbuild.publishing import artifacts

    if not (hasattr(sound, "is_floating_point") and sound.is_floating_point()):
        raise InputError.of(f"-o {path}: a sound needs an output of floats", "`-o FILE.safetensors` writes all outputs")
    shape = list(sound.shape)
    if len(shape) not in (1, 2, 3) or 0 in shape or (len(shape) > 1 and shape[0] > 1):
        message = f"-o {path}: the output {shape} is not one sound: [samples], [1, samples] or [1, channels, samples]"
        raise InputError.of(message, "`-o FILE.safetensors` writes all outputs")
    if not sound.isfinite().all():
        raise InputError.of(f"-o {path}: the output holds NaN or infinity, which a sound cannot")
    if type(rate) is not int or rate <= 0:
        message = f"-o {path}: a sound needs the constant method `{_RATE}`: an integer above 0"
        raise InputError.of(message, f"`constant_methods: {{{_RATE}: 16000}}`")
    channels = sound.reshape(-1, shape[-1])
    content = (channels.clamp(-1, 1) * _LOUDEST).round().short().T.contiguous().numpy().astype("<i2").tobytes()
    with io.BytesIO() as file:
        try:
            with wave.open(file, "wb") as opened:
                opened.setparams((len(channels), 2, rate, 0, "NONE", ""))
                opened.writeframes(content)
        except (wave.Error, struct.error) as error:
            message = f"-o {path}: no WAV file holds the output {shape} with {rate} samples in a second: {error}"
            raise InputError.of(message, "`-o FILE.safetensors` writes all outputs") from error
        artifacts.replace(path, file.getvalue())


def _write_picture(path: Path, calls: list[tuple[list[Any], list[Any]]], labels: object, program: str) -> None:
    """Writes the image of the inputs of calls with what the outputs say about it: see `pictures.drawn`."""
    from etbuild.publishing import artifacts
    from etkit.running import pictures

    inputs = [each for given, _ in calls for each in given]
    *earlier, outputs = [returned for _, returned in calls]
    try:
        text, note = pictures.drawn(inputs, outputs, labels, program, [each for some in earlier for each in some])
    except InputError as error:
        [problem] = error.problems
        raise InputError.of(f"-o {path}: {problem.message}", problem.hint) from None
    artifacts.replace(path, text.encode())
    if note:
        print(f"note: {note}", file=sys.stderr)


def _write(path: Path, outputs: list[Any]) -> None:
    import torch
    from safetensors.torch import save

    from etbuild.publishing import artifacts

    tensors: dict[str, torch.Tensor] = {
        f"output_{number}": torch.as_tensor(value).contiguous()
        for number, value in enumerate(outputs)
        if value is not None
    }
    artifacts.replace(path, save(tensors))
