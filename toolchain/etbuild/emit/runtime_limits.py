"""Finds what ExecuTorch's own runtime cannot run in a program, or runs wrongly only for some values.

ExecuTorch emits such programs without a warning. An application may have kernels of its own, so that these limits are
notes. What the runtime does wrongly for all values is not looked for here: the comparison with PyTorch finds it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from executorch.exir._serialize._program import PTEFile
from executorch.exir.scalar_type import ScalarType
from executorch.exir.schema import ExecutionPlan, KernelCall, OptionalTensorList, Tensor, TensorList

from etbuild.exception_text import summary
from etbuild.files.program_file import operator_name
from etbuild.results import RuntimeLimit

_INTEGERS = (ScalarType.BYTE, ScalarType.CHAR, ScalarType.SHORT, ScalarType.INT, ScalarType.LONG)


@dataclass(frozen=True)
class Limit:
    """Something in a program that the runtime cannot do, or does wrongly for some values.

    Attributes:
        method: The name of the method.
        what: The limit and its consequence, for users.
        hint: What users can do about it.
        operator: The operator that has the limit, such as `aten::sort.values`.
        runs: Whether the runtime runs the method.
    """

    method: str
    what: str
    hint: str
    operator: str
    runs: bool

    def facts(self) -> RuntimeLimit:
        """The limit as JSON data."""
        return dataclasses.asdict(self)  # type: ignore[return-value]


def find(file: PTEFile) -> list[Limit]:
    """The limits of the runtime that a program exceeds, in the order of its methods' names, without repetitions."""
    limits: dict[Limit, None] = {}
    kernels = _kernels()
    for plan in sorted(file.program.execution_plan, key=lambda plan: plan.name):
        for limit in _of_method(plan, kernels):
            limits.setdefault(limit)
    return list(limits)


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


def _of_method(plan: ExecutionPlan, kernels: frozenset[str] | None) -> Iterator[Limit]:
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    for call in calls:
        if not isinstance(call, KernelCall):
            continue
        operator, tensors = operator_name(plan, call.op_index), list(_tensors(plan, call.args))
        if kernels is not None and operator not in kernels:
            hint = "link one into the application"
            yield Limit(plan.name, f"it has no kernel for `{operator}`", hint, operator, runs=False)
        if operator.startswith("aten::remainder.") and all(tensor.scalar_type in _INTEGERS for tensor in tensors):
            # The kernel's result has the dividend's sign, PyTorch's has the divisor's.
            what = f"its kernel of `{operator}` gives a wrong result for integers of different signs"
            yield Limit(plan.name, what, "write `x - x // y * y`, unless no value is negative", operator, runs=True)


def _tensors(plan: ExecutionPlan, indices: list[int]) -> Iterator[Tensor]:
    """The tensors among the values with these indices, also those in lists."""
    for index in indices:
        value = plan.values[index].val if index >= 0 else None
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, TensorList | OptionalTensorList):
            yield from _tensors(plan, value.items)
