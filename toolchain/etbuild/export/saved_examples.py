"""Saves and reads the example inputs of exported methods, for the comparison. Lowering does not read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from etbuild.errors import InputError
from etbuild.files import writing
from etbuild.foreign_errors import wrap_library_errors
from etbuild.model.tensor_bytes import row_major


def of_program(program: ExportedProgram) -> list[Any]:
    """The example inputs of an exported method, in the method's order: tensors and plain values.

    If a method's file has no example inputs, returns tensors of ones in the smallest sizes that the method takes.
    """
    if program.example_inputs is not None:
        leaves: list[Any] = pytree.tree_leaves(program.example_inputs)
        return leaves
    return [_ones(program, value) if isinstance(value, torch.Tensor) else value for value in inputs_of_graph(program)]


def inputs_of_graph(program: ExportedProgram) -> list[Any]:
    """The inputs of an exported method from its graph, in the method's order: fake tensors and plain values."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else nodes[spec.arg.name].meta.get("val")
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    ]


def _ones(program: ExportedProgram, fake_tensor: torch.Tensor) -> torch.Tensor:
    sizes = [
        size if isinstance(size, int) else max(int(program.range_constraints[size.node.expr].lower), 2)
        for size in fake_tensor.shape
    ]
    return torch.ones(sizes, dtype=fake_tensor.dtype)


def write(path: Path, programs: Mapping[str, ExportedProgram]) -> None:
    """Writes the example inputs of methods, except methods with an input that safetensors cannot hold.

    Args:
        path: The file.
        programs: The exported methods, by name.

    Raises:
        BuildError: The file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, program in programs.items():
        leaves = of_program(program)
        tensors_of_method = {
            f"{name}/{index}": row_major(leaf.detach()).clone()
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor)
        }
        try:
            save(tensors_of_method)
        except (SafetensorError, KeyError, ValueError):  # safetensors does not support the dtype
            continue
        tensors.update(tensors_of_method)
    writing.write(path.parent, path.name, "export", save(tensors))


def read(path: Path, name: str, program: ExportedProgram) -> list[Any] | None:
    """Reads the example inputs of a method, in the method's order.

    Args:
        path: The file that `write` made.
        name: The name of the method.
        program: The method.

    Returns:
        Tensors and plain values; None if the file has none for the method.

    Raises:
        InputError: The file is damaged.
    """
    specs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    with (
        wrap_library_errors(InputError, None, f"{path}: not the example inputs of an export"),
        safe_open(path, "pt") as file,
    ):
        names, inputs = set(file.keys()), list[Any]()
        for index, argument in enumerate(specs):
            if isinstance(argument, ConstantArgument):
                inputs.append(argument.value)
            elif f"{name}/{index}" not in names:
                return None
            else:
                inputs.append(file.get_tensor(f"{name}/{index}"))
        return inputs
