"""Finds what ExecuTorch's own runtime cannot load, cannot run, or computes wrongly in a program.

ExecuTorch emits such programs without a warning. Each limit was measured with the runtime in the wheel of ExecuTorch
1.5.1, which has its portable, optimized and quantized kernels. `tests/integration/test_runtime_limits.py` runs each
case, and fails when ExecuTorch has fixed it. An application may have other kernels, so that most limits are only notes.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from executorch.exir._serialize._program import PTEFile
from executorch.exir.scalar_type import ScalarType
from executorch.exir.schema import (
    ExecutionPlan,
    KernelCall,
    OptionalTensorList,
    Tensor,
    TensorDataLocation,
    TensorList,
)

from etbuild.exception_text import summary
from etbuild.files.program_file import operator_name
from etbuild.results import RuntimeLimit

# The operators whose kernels in ExecuTorch accept uint16: they copy elements without computing with them.
_MOVES_UINT16 = frozenset(
    {
        "aten::copy.out",
        "aten::embedding.out",
        "aten::expand_copy.out",
        "aten::repeat.out",
        "aten::select_copy.int_out",
        "aten::slice_copy.Tensor_out",
        "aten::squeeze_copy.dims_out",
        "aten::unsqueeze_copy.out",
        "aten::view_copy.out",
        "dim_order_ops::_clone_dim_order.out",
    }
)
_INTEGERS = (ScalarType.BYTE, ScalarType.CHAR, ScalarType.SHORT, ScalarType.INT, ScalarType.LONG)
_PORTABLE = ("aten", "dim_order_ops")  # their kernels select code by dtype; other namespaces have their own kernels


_CHANNELS_LAST = ([0, 2, 3, 1], [0, 2, 3, 4, 1])
"""The dimensions of images and of volumes in the format channels_last, from the outermost one in memory."""
_ROW_MAJOR = frozenset(
    {
        "aten::cat.out",
        "aten::constant_pad_nd.out",
        "aten::flip.out",
        "aten::full_like.out",
        "aten::index.Tensor_out",
    }
)
"""The operators whose kernels fail or compute wrong numbers even if all tensors are in the format channels_last."""
_MIXES_FORMATS = frozenset({"aten::convolution.out", "aten::var.correction_out"})
"""The operators whose kernels may compute with tensors of several formats."""


@dataclass(frozen=True)
class Limit:
    """Something in a program that the runtime cannot do, or does wrongly.

    Attributes:
        method: The name of the method.
        what: The limit and its consequence, for users.
        hint: What users can do about it.
        wrong: The method runs but computes wrong results.
        operator: The operator that has the limit, such as `aten::sort.values`; None if no operator is to blame.
    """

    method: str
    what: str
    hint: str
    wrong: bool = False
    operator: str | None = None

    def facts(self) -> RuntimeLimit:
        """The limit as JSON data."""
        return dataclasses.asdict(self)  # type: ignore[return-value]


def find(file: PTEFile) -> list[Limit]:
    """The limits of the runtime that a program exceeds, in the order of its methods' names, without repetitions."""
    limits: dict[Limit, None] = {}
    kernels = _kernels()
    for plan in sorted(file.program.execution_plan, key=lambda plan: plan.name):
        for limit in _of_method(file, plan, kernels):
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


def _of_method(file: PTEFile, plan: ExecutionPlan, kernels: frozenset[str] | None) -> Iterator[Limit]:
    yield from _empty_constants(file, plan)
    yield from _unknown_formats(plan)
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    for call in calls:
        if isinstance(call, KernelCall):
            operator, tensors = operator_name(plan, call.op_index), list(_tensors(plan, call.args))
            if kernels is not None and operator not in kernels:
                yield Limit(
                    plan.name, f"it has no kernel for `{operator}`", "link one into the application", operator=operator
                )
            for check in _CHECKS:
                yield from (replace(limit, operator=operator) for limit in check(plan.name, operator, tensors))


def _tensors(plan: ExecutionPlan, indices: list[int]) -> Iterator[Tensor]:
    """The tensors among the values with these indices, also those in lists."""
    for index in indices:
        value = plan.values[index].val if index >= 0 else None
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, TensorList | OptionalTensorList):
            yield from _tensors(plan, value.items)


def _uint16(method: str, operator: str, tensors: list[Tensor]) -> Iterator[Limit]:
    """Finds uint16 tensors that a kernel does not accept. exir's verifier accepts uint16 for many more operators."""
    portable = operator.partition("::")[0] in _PORTABLE and operator not in _MOVES_UINT16
    if portable and any(tensor.scalar_type == ScalarType.UINT16 for tensor in tensors):
        what = f"its kernel of `{operator}` does not take uint16, so the method fails at run time"
        yield Limit(method, what, "use another dtype than uint16, such as int32")


def _remainder(method: str, operator: str, tensors: list[Tensor]) -> Iterator[Limit]:
    """Finds `remainder` of integers: the kernel's result has the dividend's sign, PyTorch's has the divisor's."""
    if operator.startswith("aten::remainder.") and all(tensor.scalar_type in _INTEGERS for tensor in tensors):
        what = f"its kernel of `{operator}` gives a wrong result for integers of different signs"
        yield Limit(method, what, "write `x - x // y * y`, unless no value is negative")


def _volumes(method: str, operator: str, tensors: list[Tensor]) -> Iterator[Limit]:
    """Finds convolutions of volumes, such as those of videos."""
    if operator == "aten::convolution.out" and len(tensors[0].sizes) > 4:
        what = f"its kernel of `{operator}` takes no tensors of {len(tensors[0].sizes)} dimensions, so the method fails"
        yield Limit(method, what, "write it with convolutions of 2 dimensions, or link a kernel into the application")


def _resized_bytes(method: str, operator: str, tensors: list[Tensor]) -> Iterator[Limit]:
    """Finds images of bytes that are resized with antialiasing: the kernel is off by up to 20 of 255."""
    if operator == "aten::_upsample_bilinear2d_aa.out" and tensors[0].scalar_type == ScalarType.BYTE:
        what = f"its kernel of `{operator}` computes wrong numbers for uint8"
        hint = "resize the image in float32: `interpolate(x.float(), ..., antialias=True).round().to(torch.uint8)`"
        yield Limit(method, what, hint, wrong=True)


def _scales_of_channels(method: str, operator: str, tensors: list[Tensor]) -> Iterator[Limit]:
    """Finds weights that are computed and then quantized by channels, with scales of float32 as PT2E makes them."""
    if operator == "quantized_decomposed::quantize_per_channel.out" and tensors[1].scalar_type != ScalarType.DOUBLE:
        what = f"its kernel of `{operator}` takes only scales of float64, so the method ends the process at run time"
        hint = "exclude the layer whose weight the method computes: `leave_out` of the quantizer, or `quantize: null`"
        yield Limit(method, what, hint)


def _memory_formats(method: str, operator: str, tensors: list[Tensor]) -> Iterator[Limit]:
    """Finds tensors in the memory format channels_last. Most kernels compute with such tensors if all tensors have this
    format. If not, most kernels refuse when they run, and some read the elements in a wrong order."""
    channels_last = {list(tensor.dim_order) in _CHANNELS_LAST for tensor in tensors}
    fits = operator in _MIXES_FORMATS or (False not in channels_last and operator not in _ROW_MAJOR)
    if operator.startswith("aten::") and True in channels_last and not fits:
        what = f"its kernel of `{operator}` fails or computes wrong numbers for tensors in the format channels_last"
        hint = "leave out `memory_format=torch.channels_last` in the model: a backend chooses the format that it needs"
        yield Limit(method, what, hint, wrong=True)


_CHECKS: tuple[Callable[[str, str, list[Tensor]], Iterator[Limit]], ...] = (
    _uint16,
    _remainder,
    _volumes,
    _resized_bytes,
    _scales_of_channels,
    _memory_formats,
)


def _unknown_formats(plan: ExecutionPlan) -> Iterator[Limit]:
    """Finds inputs that are neither row-major nor in the format channels_last. Only a method from a file has them."""
    for number, index in enumerate(plan.inputs):
        value = plan.values[index].val
        if not isinstance(value, Tensor):
            continue
        long = {dim for dim, size in enumerate(value.sizes) if size != 1}  # the others may stand anywhere
        order = [dim for dim in value.dim_order if dim in long]
        known = [[dim for dim in each if dim in long] for each in _CHANNELS_LAST if len(each) == len(value.sizes)]
        if order not in (sorted(order), *known):
            every = list(value.dim_order)
            what = f"input {number} has its dimensions in the order {every} in memory, which kernels do not know"
            yield Limit(plan.name, what, "export the method with a contiguous example input", wrong=True)


def _empty_constants(file: PTEFile, plan: ExecutionPlan) -> Iterator[Limit]:
    """Finds constants without elements in a program without other constants.

    The runtime cannot map a segment of 0 bytes from a file. If there are other constants, the segment is not empty.
    """
    if any(buffer.storage for buffer in file.program.constant_buffer):
        return
    for value in plan.values:
        tensor = value.val
        if isinstance(tensor, Tensor) and tensor.data_buffer_idx > 0 and tensor.allocation_info is None:
            info = tensor.extra_tensor_info
            if info is None or info.location == TensorDataLocation.SEGMENT:
                what = f"a constant of shape {tensor.sizes} has no elements, and there is no other constant: "
                hint = "remove it from the model, or load the program from memory"
                yield Limit(plan.name, f"{what}the method cannot be loaded from a file", hint)
                return
