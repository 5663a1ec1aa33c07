"""Finds the operators of a program for which ExecuTorch's own runtime has no kernel.

ExecuTorch emits such programs without a warning. An application may have kernels of its own, so that these limits are
notes. What a kernel cannot do, or does wrongly, is found when the program is compared with PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from executorch.exir._serialize._program import PTEFile
from executorch.exir.schema import ExecutionPlan, KernelCall

from etbuild.exception_text import summary
from etbuild.files.program_file import operator_name
from etbuild.results import RuntimeLimit


@dataclass(frozen=True)
class Limit:
    """Something in a program that the runtime cannot do.

    Attributes:
        method: The name of the method.
        what: The limit and its consequence, for users.
        hint: What users can do about it.
        operator: The operator that has the limit, such as `aten::sort.values`.
    """

    method: str
    what: str
    hint: str
    operator: str

    def facts(self) -> RuntimeLimit:
        """The limit as JSON data."""
        return dataclasses.asdict(self)  # type: ignore[return-value]


def find(file: PTEFile) -> list[Limit]:
    """The limits of the runtime that a program exceeds, in the order of its methods' names, without repetitions."""
    kernels = _kernels()
    plans = sorted(file.program.execution_plan, key=lambda plan: plan.name) if kernels is not None else []
    return list(dict.fromkeys(limit for plan in plans for limit in _of_method(plan, kernels or frozenset())))


@functools.cache  # prints the note only once
def _kernels() -> frozenset[str] | None:
    """The operators that the runtime has kernels for; None: the installed package does not list them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its API is experimental
        try:
            import executorch.kernels.quantized  # noqa: F401
            from executorch.extension.pybindings import portable_lib

            return frozenset(portable_lib._get_operator_names())
        except (ImportError, AttributeError) as error:  # other releases, and packages without the runtime
            print(f"note: the kernels of the runtime are not checked: {summary(error)}", file=sys.stderr)
            return None


def _of_method(plan: ExecutionPlan, kernels: frozenset[str]) -> Iterator[Limit]:
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    for operator in [operator_name(plan, call.op_index) for call in calls if isinstance(call, KernelCall)]:
        if operator not in kernels:
            yield Limit(plan.name, f"it has no kernel for `{operator}`", "link one into the application", operator)
