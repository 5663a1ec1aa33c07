"""Loads the batches that a method is calibrated on: from a declared file, a factory, or the example inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.dynamic_shapes import Dim
from torch.utils import _pytree as pytree

from etbuild import plugins
from etbuild.errors import BuildError, DocumentPath, InputError, counted, did_you_mean
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.tensor_bytes import dtype_name
from etbuild.model.tensor_files import read_tensors
from etplugins.quantize.parts import BatchesFile, Calibration, OwnInputs, SampleBatches


@dataclass(frozen=True)
class Batches:
    """The batches that a method is calibrated on.

    Attributes:
        batches: The positional inputs of each batch.
        path: The document path that declares the batches.
        source: The file or the factory that they come from; None for others.
    """

    batches: Iterable[tuple[Any, ...]]
    path: DocumentPath
    source: str | None = None

    def check(self, arguments: tuple[Any, ...], dims: list[tuple[Any, ...] | None]) -> None:
        """Checks that the method accepts the batches. PyTorch would also run the method on other batches, and find
        wrong ranges.

        Args:
            arguments: The positional example inputs.
            dims: For each tensor and plain value in `arguments`, its dimensions in the form that `torch.export`
                accepts; None: all are fixed.

        Raises:
            InputError: A batch has another structure, dtype or shape than the method accepts, or all of them have the
                same number everywhere.
        """
        expected, form = pytree.tree_flatten_with_path(arguments)
        for number, batch in enumerate(self.batches):
            leaves, form_of_batch = pytree.tree_flatten_with_path(batch)
            if form_of_batch != form:
                raise self._misfit(f"batch {number}", batch, arguments)
            sizes_so_far: dict[str, int] = {}
            for (_, value), (key_path, example), sizes in zip(leaves, expected, dims, strict=True):
                subject = f"batch {number}, input {pytree.keystr(key_path)}"
                if not _fits(value, example, sizes):
                    raise self._misfit(subject, value, example)
                self._check_sizes(subject, value, sizes, sizes_so_far)
        if self.source is not None:
            self._check_numbers()

    def _check_numbers(self) -> None:
        """Fails if each input has only one number in all batches: the ranges would fit no other input."""
        leaves = [pytree.tree_leaves(batch) for batch in self.batches]
        inputs = [[each for each in of_batch if isinstance(each, torch.Tensor) and each.numel()] for of_batch in leaves]
        together = [torch.cat([each.flatten() for each in of_input]) for of_input in zip(*inputs, strict=True)]
        numbers = [f"{of_input[0].item():g}" for of_input in together if bool((of_input == of_input[:1]).all())]
        of_several = any(each.numel() > 1 for of_batch in inputs for each in of_batch)
        if of_several and len(numbers) == len(together):
            message = f"`{self.source}` has nothing but {', '.join(numbers)} in each input, so its ranges fit no other"
            raise InputError.at(self.path, message, "calibrate on inputs like those that the method will get")

    def _check_sizes(
        self, subject: str, value: Any, sizes: tuple[Any, ...] | None, sizes_so_far: dict[str, int]
    ) -> None:
        """Checks that a dimension has the same size in all inputs of a batch.

        Args:
            subject: The input, for messages.
            value: The value of the input.
            sizes: The dimensions of the input; None: all are fixed.
            sizes_so_far: The sizes in earlier inputs of the batch, by name. New ones are added.
        """
        for size, dim in zip(value.shape, sizes, strict=True) if sizes else ():
            if not isinstance(dim, Dim):
                continue
            name, root = _root_size(dim, size)
            hint = "a dimension of `dynamic_shapes` has one size in all inputs of a batch"
            if root is None:
                raise InputError.at(
                    self.path, f"{subject} has a size of {size}, which `{dim.__name__}` cannot be", hint
                )
            if sizes_so_far.setdefault(name, root) != root:
                other = f"another input has {sizes_so_far[name]} for `{name}`"
                message = f"{subject} has {size} for `{dim.__name__}`, but {other}"
                raise InputError.at(self.path, message, hint)

    def _misfit(self, subject: str, value: Any, example: Any) -> InputError:
        message = f"{subject} is {_shown(value)}, but the method takes {_shown(example)}"
        hint = "a batch is a tuple with one value for each input, of the dtype and shape in `example_inputs`"
        return InputError.at(self.path, message, hint)


def make(calibration: Calibration, arguments: tuple[Any, ...], path: DocumentPath, context: StepContext) -> Batches:
    """Loads the batches that the manifest declares.

    Args:
        calibration: The calibration in the plan.
        arguments: The positional example inputs.
        path: The document path of the calibration.
        context: The declared inputs of the step, which contain the file or the factory.

    Raises:
        InputError: The file is not declared, or its tensors do not fit the inputs.
        BuildError: The factory failed, or returned no batches.
    """
    if isinstance(calibration, BatchesFile):
        of_file = _batches_of_file(calibration, len(arguments), path, context.inputs)
        return Batches(of_file, path, calibration.file)
    if isinstance(calibration, SampleBatches):
        place = (*path[: path.index("quantize")], "samples")
        samples = plugins.load("samples", "files").read(calibration.samples, place, context)
        return Batches([sample.inputs for sample in samples], path, calibration.samples.files)
    if isinstance(calibration, OwnInputs):
        return Batches([arguments], path)
    factory_path = (*path, "factory")
    create = load_callable(calibration.factory, factory_path)
    with wrap_user_error(factory_path, f"`{calibration.factory}`"):
        batches = [as_batch(batch) for batch in create(**calibration.kwargs)]
    if not batches:
        raise BuildError.at(factory_path, f"`{calibration.factory}` returned no batches")
    return Batches(batches, path, calibration.factory)


def _batches_of_file(calibration: BatchesFile, count: int, path: DocumentPath, inputs: Given) -> list[tuple[Any, ...]]:
    name = calibration.file
    tensors = read_tensors(name, inputs.find_data(name, (*path, "file")), (*path, "file"))
    keys = calibration.keys if calibration.keys is not None else list(tensors) if len(tensors) == 1 else []
    if len(keys) != count:
        hint = f"write `keys:` with a name for each input; `{name}` has {', '.join(tensors)}"
        raise InputError.at((*path, "keys"), f"{counted(len(keys), 'key')} for {counted(count, 'input')}", hint)
    missing = [key for key in keys if key not in tensors]
    if missing:
        message = f"`{name}` has no tensor `{missing[0]}`"
        raise InputError.at((*path, "keys"), message, did_you_mean(missing[0], tensors))
    lengths = {key: len(tensors[key]) if tensors[key].dim() else 0 for key in keys}
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        listed = ", ".join(f"`{key}` {length}" for key, length in lengths.items())
        raise InputError.at((*path, "file"), f"the tensors of `{name}` have different numbers of batches: {listed}")
    return [tuple(tensors[key][index] for key in keys) for index in range(lengths[keys[0]])]


def _fits(value: Any, example: Any, dims: tuple[Any, ...] | None) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(example, torch.Tensor):
        return type(value) is type(example) and bool(value == example)
    if value.dtype != example.dtype or value.dim() != example.dim():
        return False
    return all(
        dim.min <= size <= dim.max if isinstance(dim, Dim) else size == fixed
        for size, fixed, dim in zip(value.shape, example.shape, dims or [None] * value.dim(), strict=True)
    )


def _root_size(dim: Any, size: int) -> tuple[str, int | None]:
    """The name of the dimension from which `dim` is derived, and its size; None if no size of it gives `size`."""
    if not hasattr(dim, "root"):
        return dim.__name__, size
    plus = int(dim.fn(0))
    times = int(dim.fn(1)) - plus
    return dim.root.__name__, (size - plus) // times if (size - plus) % times == 0 else None


def as_batch(inputs: Any) -> tuple[Any, ...]:
    """The inputs of a batch as a tuple. `inputs` may be a tuple, a list, or a single input."""
    return tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)


def _shown(values: Any) -> str:
    def described(value: Any) -> Any:
        return f"{dtype_name(value.dtype)} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

    return str(pytree.tree_map(described, values)).replace("'", "")
