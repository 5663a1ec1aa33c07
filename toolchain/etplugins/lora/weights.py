"""Reads the weights of LoRA adapters, as PEFT writes them, and checks that they fit the module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from etbuild.errors import DocumentPath, InputError, Problem, unknown
from etbuild.inputs.given import Given
from etbuild.model.tensor_bytes import FLOATING
from etbuild.model.tensor_facts import TensorFacts
from etbuild.model.tensor_files import TensorFile, open_checkpoint
from etplugins.lora.layers import FACTORS
from etplugins.lora.parts import OF_LAYER

_WITHOUT_MODEL = (
    "save the adapter with `save_pretrained(..., save_embedding_layers=False)`, or, if the training changed them, "
    "merge it into the model's weights with `merge_and_unload`"
)


def names_of(adapter: str, names: Iterable[str]) -> dict[str, str]:
    """The names of an adapter's weights in PEFT's file, by their names in the module.

    Args:
        adapter: The name of the adapter.
        names: The names of the module's tensors.
    """
    split = {name: name.rpartition(f"{OF_LAYER}.{adapter}.") for name in names}
    return {
        name: f"base_model.model.{layer}{factor}.weight"
        for name, (layer, separator, factor) in split.items()
        if separator and factor in FACTORS and (not layer or layer.endswith("."))
    }


def check_weights(files: Mapping[str, str], facts: Iterable[TensorFacts], inputs: Given) -> None:
    """Checks that the files of adapters hold the weights that the layers of the module need, and no others.

    Args:
        files: The declared file of each adapter, by the adapter's name.
        facts: Facts about the module's tensors.
        inputs: The declared inputs.

    Raises:
        InputError: A file cannot be read or does not fit. The error names each tensor.
    """
    facts_by_name = {entry.name: entry for entry in facts}
    problems: list[Problem] = []
    for adapter, file in files.items():
        shapes = {stored: facts_by_name[name].shape for name, stored in names_of(adapter, facts_by_name).items()}
        opened = _open(adapter, file, inputs)
        # PEFT saves weights of the model with an adapter that changes its embeddings or its scores.
        in_module = {name: name.removeprefix("base_model.model.").replace(".base_layer.", ".") for name in opened.names}
        model_weights = [name for name in opened.names if in_module[name] in facts_by_name]
        problems += [
            Problem(f"`{file}` has `{name}`, which is a weight of the model itself", _path(adapter), _WITHOUT_MODEL)
            for name in model_weights
        ]
        problems += _misfits(opened, file, shapes, set(model_weights), _path(adapter))
    InputError.raise_if(problems)


def read_weights(files: Mapping[str, str], names: Collection[str], inputs: Given) -> dict[str, torch.Tensor]:
    """The weights of adapters by their names in the module, in float32.

    Args:
        files: The declared file of each adapter, by the adapter's name.
        names: The names of the weights. `check_weights` has accepted them.
        inputs: The declared inputs.

    Raises:
        InputError: A file cannot be read.
    """
    weights = {}
    for adapter, file in files.items():
        opened = _open(adapter, file, inputs)
        for name, stored in names_of(adapter, names).items():
            weights[name] = opened.take(stored).detach().to(torch.float32).contiguous()
    return weights


def _path(adapter: str) -> DocumentPath:
    return ("model", "adapters", adapter, "weights")


def _open(adapter: str, file: str, inputs: Given) -> TensorFile:
    path = _path(adapter)
    return open_checkpoint(file, inputs.find_data(file, path), path)


def _misfits(
    opened: TensorFile, file: str, shapes: Mapping[str, list[int]], model_weights: set[str], path: DocumentPath
) -> Iterator[Problem]:
    """The problems of a file: missing and unexpected tensors, other shapes, and dtypes that are not floating-point.
    `model_weights` are names of tensors in the file that are weights of the model."""
    hint = "do the weights belong to this `adapter_config.json`, and both to this model?"
    stored_names = set(opened.names)
    for name in sorted(shapes.keys() - stored_names):
        yield Problem(f"`{name}` is missing in `{file}`", path, hint)
    for name, nearest in unknown(sorted(stored_names - shapes.keys() - model_weights), shapes.keys() - stored_names):
        yield Problem(f"`{file}` has `{name}`, which is not a weight of the adapter's layers", path, nearest or hint)
    fitting = [name for name in opened.names if name in shapes]
    opened.check(fitting)
    for name in fitting:
        dtype, shape = opened.form(name)
        if shape != shapes[name]:
            yield Problem(f"`{name}` has to be {shapes[name]}, and is {shape} in `{file}`", path, hint)
        elif dtype not in FLOATING:
            floating = ", ".join(FLOATING)
            yield Problem(f"`{name}` is {dtype} in `{file}`", path, f"an adapter has to be in one of {floating}")
