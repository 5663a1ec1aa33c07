"""Gives modules and weights in a strict export the names that they have in a non-strict export.

TorchDynamo names a module by its address, which differs in each process. It names a weight by the traced code's path to
it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument

Spec = TypeVar("Spec", InputSpec, OutputSpec)
_PREFIXES = {InputKind.PARAMETER: "p_", InputKind.BUFFER: "b_", InputKind.CONSTANT_TENSOR: "c_"}  # torch.export's


def restore(program: ExportedProgram, module: torch.nn.Module, root: torch.nn.Module) -> None:
    """Renames weights and modules in a program by their names in the module.

    Args:
        program: The result of a strict export. It is changed in place.
        module: The module.
        root: The exported module: `module`, or the root that calls its entry.
    """
    names = {str(id(child)): name for name, child in (*module.named_modules(), ("", root))}
    numbers: dict[str, str] = {}
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in graph_module.graph.nodes:
                stack = node.meta.get("nn_module_stack")
                if stack:
                    node.meta["nn_module_stack"] = dict(_entry(names, numbers, *entry) for entry in stack.items())
    _name_inputs(program)


def _entry(
    names: dict[str, str], numbers: dict[str, str], key: str, entry: tuple[str, Any]
) -> tuple[str, tuple[str, Any]]:
    """An entry of `nn_module_stack` in the form of a non-strict export: a key, and the path and class of a module.

    Args:
        names: The names of modules by their ids. The ids are strings.
        numbers: The numbers of modules without a name, such as modules in lists. New ones are added.
        key: TorchDynamo's key of the module.
        entry: TorchDynamo's path and class of the module.
    """
    if key not in names:
        return numbers.setdefault(key, str(len(numbers))) if key.isdigit() else key, entry
    path = names[key]
    return "__".join(["L", "self", path.replace(".", "_")]), (path, entry[1])


def _name_inputs(program: ExportedProgram) -> None:
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    renamed: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        new_name = f"{_PREFIXES.get(spec.kind, '')}{re.sub('[^a-zA-Z0-9]', '_', spec.target or '')}"
        if spec.kind in _PREFIXES and spec.arg.name != new_name:
            node = inputs[spec.arg.name]
            node._rename(new_name)
            node.target = node.name
            renamed[spec.arg.name] = node.name
    if renamed:
        signature = program.graph_signature
        program._graph_signature = ExportGraphSignature(
            [_renamed(spec, renamed) for spec in signature.input_specs],
            [_renamed(spec, renamed) for spec in signature.output_specs],
        )
        program.graph_module.recompile()


def _renamed(spec: Spec, names: dict[str, str]) -> Spec:
    return replace(spec, arg=TensorArgument(names[spec.arg.name])) if spec.arg.name in names else spec
