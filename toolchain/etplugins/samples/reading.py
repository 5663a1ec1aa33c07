"""Reads samples: the inputs that each file holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from etbuild.errors import BuildError, DocumentPath, InputError, counted, did_you_mean
from etbuild.export.example_values import checked
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.tensor_files import read_tensors
from etplugins.samples.names import names as find
from etplugins.samples.parts import FOLDER, Samples


@dataclass(frozen=True)
class Sample:
    """The inputs of one call.

    Attributes:
        name: The name of the file.
        inputs: The positional inputs.
        label: What belongs to it; None without labels.
    """

    name: str
    inputs: tuple[Any, ...]
    label: str | None = None


def read(samples: Samples, path: DocumentPath, context: StepContext) -> list[Sample]:
    """Reads samples in the order of their names.

    Args:
        samples: Which files, and how they are read.
        path: The place in the manifest that names the samples, for errors.
        context: The declared inputs of the step, which contain the files and the loader.

    Raises:
        InputError: A file is not declared or cannot be read, or a package is missing.
        BuildError: The loader failed, or returned something else than inputs.
    """
    names = find(samples.files, path, context.inputs)
    load = _loader(samples, path, context.inputs)
    labels = _labels(samples, names, path, context.inputs)
    return [Sample(name, load(name), labels.get(name)) for name in names[: samples.count]]


def first(samples: Samples, path: DocumentPath, context: StepContext) -> tuple[Any, ...]:
    """The inputs of the first sample. Arguments and errors are those of `read`."""
    return read(samples.replace(count=1, labels=None), path, context)[0].inputs


def _loader(samples: Samples, path: DocumentPath, inputs: Given) -> Callable[[str], tuple[Any, ...]]:
    """The function that returns the inputs in a file."""
    if samples.loader is not None:
        return partial(_loaded, samples.loader, load_callable(samples.loader, path), path, inputs)
    if samples.image is not None:
        from etplugins.samples.images import reader as of_images

        return partial(_read, of_images(samples.image, path), path, inputs)
    if samples.sound is not None:
        from etplugins.samples.sounds import reader as of_sounds

        return partial(_read, of_sounds(samples.sound), path, inputs)
    return partial(_tensors, samples.keys, path, inputs)


def _loaded(
    reference: str, load: Callable[[Path], Any], path: DocumentPath, inputs: Given, name: str
) -> tuple[Any, ...]:
    file = inputs.find_data(name, path)
    with wrap_user_error(path, f"`{reference}` with `{name}`"):
        value = load(file)
        values = value if isinstance(value, tuple) else (value,)
        return tuple(checked(each, f"`{reference}` returned", path) for each in values)


def _read(load: Callable[[Path], Any], path: DocumentPath, inputs: Given, name: str) -> tuple[Any, ...]:
    file = inputs.find_data(name, path)
    try:
        return (load(file),)
    except Exception as error:  # noqa: BLE001 - the errors of Pillow have no common base class
        raise InputError.at(path, f"cannot read `{name}`: {error}") from None


def _tensors(keys: tuple[str, ...] | None, path: DocumentPath, inputs: Given, name: str) -> tuple[Any, ...]:
    tensors = read_tensors(name, inputs.find_data(name, path), path)
    missing = [key for key in keys or () if key not in tensors]
    if missing:
        raise InputError.at(path, f"`{name}` has no tensor `{missing[0]}`", did_you_mean(missing[0], tensors))
    if keys is None and len(tensors) != 1:
        hint = f"name those of the inputs: `keys: [{', '.join(tensors)}]`"
        raise InputError.at(path, f"`{name}` has {counted(len(tensors), 'tensor')}", hint)
    return tuple(tensors[key] for key in keys or tensors)


def _labels(samples: Samples, names: Sequence[str], path: DocumentPath, inputs: Given) -> dict[str, str]:
    """The label of each sample by the name of its file; empty without labels."""
    if samples.labels is None:
        return {}
    if samples.labels == FOLDER:
        return {name: PurePosixPath(name).parent.name for name in names}
    try:
        text = inputs.find_data(samples.labels, path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError.at(path, f"`{samples.labels}` is not text in UTF-8: {error.reason}") from None
    rows: dict[str, str] = {}
    for line in text.splitlines():
        base, comma, label = line.strip().rpartition(",")
        if comma and rows.setdefault(base, label) != label:
            raise InputError.at(path, f"`{samples.labels}` has two labels for `{base}`: {rows[base]} and {label}")
    bases = [PurePosixPath(name).name for name in names[: samples.count]]
    if twice := [base for base in bases if bases.count(base) > 1]:
        hint = "a label belongs to a name without its folder: give the files different names, or write `labels: folder`"
        raise InputError.at(path, f"two samples have the name `{twice[0]}`", hint)
    absent = [name for name in names[: samples.count] if PurePosixPath(name).name not in rows]
    if absent:
        hint = "each line is the name of a file without its folder, a comma, and the label"
        raise BuildError.at(path, f"`{samples.labels}` has no label for `{PurePosixPath(absent[0]).name}`", hint)
    return {name: rows[base].strip() for name in names if (base := PurePosixPath(name).name) in rows}
