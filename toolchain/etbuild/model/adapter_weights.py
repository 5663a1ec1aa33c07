"""Reads the weights of LoRA adapters, as PEFT writes them, and checks that they fit the module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from etbuild.errors import DocumentPath, InputError, Problem, unknown
from etbuild.inputs.given import Given
from etbuild.manifest.adapters import OF_LAYER
from etbuild.model.adapters import FACTORS
from etbuild.model.tensor_bytes import FLOATING
from etbuild.model.tensor_facts import TensorFacts
from etbuild.model.tensor_files import TensorFile, open_checkpoint

_WITHOUT_MODEL = (
    "save the adapter with `save_pretrained(..., save_embedding_layers=False)`, or, if the training changed them, "
    "merge it into the model's weights with `merge_and_unload`"
)


def names_of(adapter: str, names: Iterable[str]) -> dict[str, str]:
    """The weights of an adapter among the tensors of a module: the name in PEFT's file of each, by its own name.

    Args:
        adapter: The name of the adapter.
        names: The names of the module's tensors.
    """
    split = {name: name.rpartition(f"{OF_LAYER}.{adapter}.") for name in names}
    return {
        name: f"base_model.model.{layer}{own}.weight"
        for name, (layer, found, own) in split.items()
        if found and own in FACTORS and (not layer or layer.endswith("."))
    }


def check(files: Mapping[str, str], facts: Iterable[TensorFacts], inputs: Given) -> None:
    """Checks that the files of adapters hold the weights that the layers of the module need, and no others.

    Args:
        files: The declared file of each adapter, by the adapter's name.
        facts: Facts about the module's tensors.
        inputs: The declared inputs.

    Raises:
        InputError: A file cannot be read or does not fit. The error names each tensor.
    """
    by_name = {entry.name: entry for entry in facts}
    problems: list[Problem] = []
    for adapter, file in files.items():
        shapes = {stored: by_name[name].shape for name, stored in names_of(adapter, by_name).items()}
        opened = _opened(adapter, file, inputs)
        # PEFT saves weights of the model with an adapter that changes its embeddings or its scores.
        in_module = {name: name.removeprefix("base_model.model.").replace(".base_layer.", ".") for name in opened.names}
        of_model = [name for name in opened.names if in_module[name] in by_name]
        problems += [
            Problem(f"`{file}` has `{name}`, which is a weight of the model itself", _place(adapter), _WITHOUT_MODEL)
            for name in of_model
        ]
        problems += _misfits(opened, file, shapes, set(of_model), _place(adapter))
    if problems:
        raise InputError(problems)


def read(files: Mapping[str, str], names: Collection[str], inputs: Given) -> dict[str, torch.Tensor]:
    """The weights of adapters by their names in the module, in float32.

    Args:
        files: The declared file of each adapter, by the adapter's name.
        names: The names of the weights. `check` found nothing wrong with them.
        inputs: The declared inputs.

    Raises:
        InputError: A file cannot be read.
    """
    found = {}
    for adapter, file in files.items():
        opened = _opened(adapter, file, inputs)
        for name, stored in names_of(adapter, names).items():
            found[name] = opened.take(stored).detach().to(torch.float32).contiguous()
    return found


def _place(adapter: str) -> DocumentPath:
    return ("model", "adapters", adapter, "weights")


def _opened(adapter: str, file: str, inputs: Given) -> TensorFile:
    place = _place(adapter)
    return open_checkpoint(file, inputs.find_data(file, place), place)


def _misfits(
    opened: TensorFile, file: str, shapes: Mapping[str, list[int]], others: set[str], place: DocumentPath
) -> Iterator[Problem]:
    """The tensors that are missing in a file, are too many, or have another shape or a dtype that is no float. `others`
    are the names of tensors in it that are not an adapter's."""
    config = "do the weights belong to this `adapter_config.json`, and both to this model?"
    held = set(opened.names)
    for name in sorted(shapes.keys() - held):
        yield Problem(f"`{name}` is missing in `{file}`", place, config)
    for name, nearest in unknown(sorted(held - shapes.keys() - others), shapes.keys() - held):
        yield Problem(f"`{file}` has `{name}`, which is not a weight of the adapter's layers", place, nearest or config)
    known = [name for name in opened.names if name in shapes]
    opened.check(known)
    for name in known:
        dtype, shape = opened.form(name)
        if shape != shapes[name]:
            yield Problem(f"`{name}` has to be {shapes[name]}, and is {shape} in `{file}`", place, config)
        elif dtype not in FLOATING:
            floating = ", ".join(FLOATING)
            yield Problem(f"`{name}` is {dtype} in `{file}`", place, f"an adapter has to be in one of {floating}")
