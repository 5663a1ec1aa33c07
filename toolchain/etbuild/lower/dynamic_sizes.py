"""Keeps the sizes of inputs dynamic while methods are lowered.

A size is a symbol. Code that turns it into a number fixes it for the whole method at the size of the example, and says
nothing: the program then takes no other size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from executorch.exir import EdgeProgramManager, sym_util
from executorch.exir.verification import arg_validator
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import free_symbols

from etbuild.errors import BuildError, Problem
from etbuild.patching import replacing

Sizes = dict[str, dict[tuple[int, int], str]]
"""By method: the names of inputs with dynamic sizes, by their numbers and those of the dimensions. Passes may change a
name: `input`, for example, becomes `input_1`."""


@replacing(arg_validator, "len")
def verified_as_symbols(values: Any) -> int:
    """A length for ExecuTorch's verifier that fixes no size.

    It asks for the length of a list of tensors that an operator returns, such as `split`. What it takes for the list is
    the first tensor, whose length is a size. It needs none: an empty list may have any dtype.
    """
    return 0 if isinstance(values, torch.Tensor) else len(values)


def first_unlimited(program: ExportedProgram) -> torch.fx.Node | None:
    """The first operator whose result has a size without an upper limit, for which no memory can be planned."""
    for node in program.graph.nodes:
        values = node.meta.get("val") if node.op == "call_function" else None
        for value in values if isinstance(values, tuple | list) else (values,):
            if isinstance(value, torch.Tensor) and any(map(_is_unlimited, value.shape)):
                return node
    return None


def _is_unlimited(size: int | torch.SymInt) -> bool:
    try:
        sym_util.eval_upper_bound(size)
    except RuntimeError:
        return True
    return False


def of_inputs(programs: Mapping[str, ExportedProgram]) -> Sizes:
    """The dynamic sizes of the inputs of methods."""
    return {name: dict(_dynamic(program)) for name, program in programs.items()}


def _dynamic(program: ExportedProgram) -> Iterator[tuple[tuple[int, int], str]]:
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    for number, spec in enumerate(specs):
        value = values.get(spec.arg.name)
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        yield from (((number, index), spec.arg.name) for index, size in enumerate(sizes) if free_symbols(size))


def check(before: Sizes, edge: EdgeProgramManager) -> None:
    """Fails if sizes that were dynamic before the lowering are fixed after it.

    Raises:
        BuildError: The methods and inputs with such a size.
    """
    after = of_inputs({name: edge.exported_program(name) for name in edge.methods})
    hint = "a pass or a backend uses it as a number: change that code, or remove the size from the dynamic shapes"
    problems = [
        Problem(f"lowering fixes dimension {index} of the input `{name}`, which is dynamic", ("methods", method), hint)
        for method in sorted(edge.methods)
        for (number, index), name in sorted(before.get(method, {}).items())
        if (number, index) not in after[method]
    ]
    if problems:
        raise BuildError(problems)
