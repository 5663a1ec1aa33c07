"""Finds operators that a backend leaves out because of their dtype, although it has an option for the dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram

from etbuild import backends
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.lower.partition_counts import operator_name
from etbuild.model.tensor_bytes import dtype_name
from etbuild.plan.parts import BackendEntry
from etbuild.plan.step_plans import MethodPlan

_ACTIVATIONS = "torchao.choose_qparams_affine.default"
# Models spend most time in these. Other operators stay outside of delegates for many reasons.
_LARGE = ("aten::addmm", "aten::mm", "aten::bmm", "aten::linear", "aten::convolution")


def check_quantized(lower_plan: MethodPlan, programs: dict[str, ExportedProgram]) -> None:
    """Fails if all backends of a method refuse its quantized layers because of their dtype. ExecuTorch itself has no
    kernels for layers whose activations are quantized at run time.

    Args:
        lower_plan: The lower plan.
        programs: The exported methods by name.

    Raises:
        BuildError: The error names the option that is missing.
    """
    problems = []
    for name, program in sorted(programs.items()):
        of = {dtype_of(node.args[0]) for node in program.graph.nodes if str(node.target) == _ACTIVATIONS}
        entries = lower_plan.methods[name].partitioners
        if lower_plan.methods[name].from_recipe or not entries:
            continue  # the partitioners of a recipe are not known yet
        for dtype in sorted(of - {None}, key=str):
            found = list(_missing_options(entries, name, str(dtype)))
            if len(found) == len(entries):
                path, line = found[0]
                message = f"`{entries[0].backend}` does not take the quantized layers, which compute in {dtype}"
                problems.append(Problem(message, path, f"write `{line}`, or `dtype: float32` below `model`"))
    BuildError.raise_if(problems)


def notes_on_left_out(lower_plan: MethodPlan, edge: EdgeProgramManager, name: str) -> list[str]:
    """Notes about large operators of a method that no backend took, if an option may change that."""
    counts: dict[str, Counter[str]] = {}
    for node in edge.exported_program(name).graph.nodes:
        dtype = dtype_of(node) if node.op == "call_function" else None
        if dtype is not None and operator_name(node) in _LARGE:
            counts.setdefault(dtype, Counter())[operator_name(node)] += 1
    found = []
    for dtype, operators in sorted(counts.items()):
        for _, line in list(_missing_options(lower_plan.methods[name].partitioners, name, dtype))[:1]:
            shown = ", ".join(f"{count} {operator}" for operator, count in sorted(operators.items()))
            found.append(f"`{name}` computes in {dtype} outside of its backends ({shown}); `{line}` may change that")
    return found


def _missing_options(entries: tuple[BackendEntry, ...], method: str, dtype: str) -> Iterator[tuple[DocumentPath, str]]:
    """The partitioners of a method that need another option for a dtype: the place of each, and the entry to write."""
    for index, entry in enumerate(entries):
        path: DocumentPath = ("methods", method, "partitioners", index)
        options = backends.ask(backends.get(entry.backend), "option_for_dtype", entry.options, dtype, path=path)
        if options:
            added = ", ".join(f"{key}: {str(value).lower()}" for key, value in options.items())
            whole = f"{{backend: {entry.backend}, options: {{{added}}}}}"
            yield path, f"{added}` in the options of `{entry.backend}" if entry.options else whole


def dtype_of(node: object) -> str | None:
    """The name of the dtype of a node's value; None if it is no tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return dtype_name(value.dtype) if isinstance(value, torch.Tensor) else None
