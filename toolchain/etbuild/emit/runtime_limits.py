"""Finds the operators of a program for which ExecuTorch's own runtime has no kernel.

ExecuTorch emits such programs without a warning. An application may have its own kernels, so these limits are only
notes. The comparison with PyTorch finds what a kernel cannot do, or does wrongly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable

from executorch.exir._serialize._program import PTEFile
from executorch.exir.schema import ExecutionPlan, KernelCall

from etbuild.exception_text import summary
from etbuild.files.program_file import operator_name
from etbuild.lower import runtime_kernels
from etbuild.results import RuntimeLimit

_HINT = "link one into the application"


def find(file: PTEFile) -> list[RuntimeLimit]:
    """The limits of the runtime that a program exceeds, in the order of its methods' names, without repetitions."""
    kernels = _kernels()
    if kernels is None:
        return []
    return [
        {"method": plan.name, "operator": operator, "what": f"it has no kernel for `{operator}`", "hint": _HINT}
        for plan in sorted(file.program.execution_plan, key=lambda plan: plan.name)
        for operator in _called(plan)
        if operator not in kernels
    ]


def without_kernel(operators: Iterable[str]) -> list[str]:
    """Those of the operators for which ExecuTorch's package has no kernel."""
    kernels = _kernels()
    return [] if kernels is None else [each for each in operators if each not in kernels]


@functools.cache  # prints the note only once
def _kernels() -> frozenset[str] | None:
    """The operators that the runtime has kernels for; None: the installed package does not list them."""
    names = runtime_kernels.listed()
    if isinstance(names, Exception):
        print(f"note: the kernels of the runtime are not checked: {summary(names)}", file=sys.stderr)
        return None
    return names


def _called(plan: ExecutionPlan) -> list[str]:
    """The operators that a method calls, in the order of their first calls."""
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    return list(dict.fromkeys(operator_name(plan, call.op_index) for call in calls if isinstance(call, KernelCall)))
