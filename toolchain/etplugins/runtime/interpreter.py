"""Runs a program in PyTorch, instruction by instruction, where the runtime here lacks its kernels or its backend.

ExecuTorch's packages have references in Python for the kernels of Cortex-M, and Arm's tools have a reference model for
TOSA. So programs for these are compared like others, on any machine.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir.tensor import get_scalar_type

from etbuild.errors import BuildError
from etbuild.exception_text import summary
from etbuild.files import program_file
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import check_inputs

_FUNCTIONAL = ("cortex_m", "dim_order_ops", "quantized_decomposed")
"""The namespaces of operators that PyTorch has without `out`."""
_TOSA = "TOSABackend"


def can_run(delegates: Iterable[str], operators: Iterable[str]) -> bool:
    """Whether a method with these backends and operators may be interpreted."""
    has_model = importlib.util.find_spec("tosa_reference_model") is not None
    known = all(name == _TOSA and has_model for name in delegates)
    return known and all(name.partition("::")[0] in (*_FUNCTIONAL, "aten", "executorch_prim") for name in operators)


class Interpreter:
    """A program whose methods keep no state. It has the methods of `Session` that a comparison calls.

    Args:
        files: Its files.
        scratch: Has no meaning here.
    """

    def __init__(self, files: ProgramFiles, scratch: Path) -> None:
        del scratch
        import torch.ao.quantization.fx._decomposed  # noqa: F401 - these imports register operators

        self._files = files
        self._program = program_file.read_program_file(files.program).program
        self._plans = {plan.name: plan for plan in self._program.execution_plan}

    def load(self, method: str) -> None:
        """Checks that a method can be interpreted. Raises RuntimeError if not."""
        for value in self._plans[method].values:
            tensor = value.val
            if isinstance(tensor, schema.Tensor) and tensor.data_buffer_idx and tensor.allocation_info is not None:
                raise RuntimeError("the method keeps state, which the interpreter does not")

    def state(self, method: str, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Nothing: see `load`."""
        del method, names
        return {}

    def call(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Calls a method: see `Session.call`."""
        check_inputs(self._files, method, inputs)
        try:
            return _Call(self._program, self._plans[method]).run(inputs)
        except (NotImplementedError, RuntimeError, ValueError, IndexError, TypeError) as error:
            raise BuildError.of(f"PyTorch cannot run `{method}`: {summary(error)}") from error


class _Call:
    """A call of a method: the values that it has computed so far, by their numbers."""

    def __init__(self, program: schema.Program, plan: schema.ExecutionPlan) -> None:
        self._program, self._plan = program, plan
        self._values: dict[int, Any] = {}

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for some inputs."""
        self._values.update(zip(self._plan.inputs, inputs, strict=True))
        with torch.no_grad():
            for chain in self._plan.chains:
                for instruction in chain.instructions:
                    self._do(instruction.instr_args)
        return [self._value(index) for index in self._plan.outputs]

    def _do(self, call: schema.InstructionArguments) -> None:
        if isinstance(call, schema.KernelCall):
            self._call_kernel(self._plan.operators[call.op_index], call.args)
        elif isinstance(call, schema.DelegateCall):
            self._call_delegate(self._plan.delegates[call.delegate_index], call.args)
        elif isinstance(call, schema.MoveCall):
            self._values[call.move_to] = self._value(call.move_from)
        elif isinstance(call, schema.JumpFalseCall):
            raise NotImplementedError("the method has branches")

    def _call_kernel(self, operator: schema.Operator, indices: Sequence[int]) -> None:
        namespace, _, name = operator.name.partition("::")
        if (namespace, name) == ("executorch_prim", "et_view"):
            source, size, result = indices[:3]
            self._values[result] = self._value(source).reshape(self._value(size))
            return
        packet = getattr(getattr(torch.ops, namespace), name)
        found = packet.default if namespace in _FUNCTIONAL else getattr(packet, operator.overload or "default")
        given = found._schema.arguments
        positional = [
            self._argument(each, index) for each, index in zip(given, indices, strict=False) if not each.kwarg_only
        ]
        named = {
            each.name: self._argument(each, index)
            for each, index in zip(given, indices, strict=False)
            if each.kwarg_only
        }
        results = found(*positional, **named)
        listed = results if isinstance(results, (tuple, list)) else [results]
        for index, result in zip(indices[-len(listed) :], listed, strict=True):
            self._values[index] = self._laid_out(index, result)

    def _argument(self, argument: Any, index: int) -> Any:
        """The value of an argument. An `out` gets a tensor to write to."""
        if argument.is_out:
            return self._empty(index)
        value = self._value(index)
        if isinstance(value, int) and not isinstance(value, bool) and "ScalarType" in str(argument.real_type):
            return get_scalar_type(schema.ScalarType(value))
        return torch.contiguous_format if "MemoryFormat" in str(argument.real_type) and value is not None else value

    def _call_delegate(self, delegate: schema.BackendDelegate, indices: Sequence[int]) -> None:
        if delegate.id != _TOSA:
            raise NotImplementedError(f"it calls {delegate.id}")
        import tosa_reference_model

        compiled = bytes(self._program.backend_delegate_data[delegate.processed.index].data)
        tensors = [index for index in indices if isinstance(self._plan.values[index].val, schema.Tensor)]
        given = [index for index in tensors if index in self._values]
        made = tensors[len(given) :]
        inputs = [_in_memory(self._value(index)).numpy() for index in given]
        results, status = tosa_reference_model.run(compiled, inputs, initialize_variable_tensor_from_numpy=True)
        if status != tosa_reference_model.GraphStatus.TOSA_VALID:
            raise RuntimeError("Arm's reference model refuses the graph")
        for index, result in zip(made, results, strict=True):
            tensor: Any = self._plan.values[index].val
            order = list(tensor.dim_order)
            whole = torch.from_numpy(result).reshape([tensor.sizes[dim] for dim in order])
            self._values[index] = whole.permute([order.index(dim) for dim in range(len(order))])

    def _value(self, index: int) -> Any:
        if index not in self._values:
            self._values[index] = self._constant(self._plan.values[index].val)
        return self._values[index]

    def _constant(self, value: Any) -> Any:
        if isinstance(value, schema.Tensor):
            if (
                value.extra_tensor_info is not None
                and value.extra_tensor_info.location == schema.TensorDataLocation.EXTERNAL
            ):
                raise NotImplementedError("its weights are in named data")
            return self._stored(value)
        if isinstance(value, (schema.IntList, schema.TensorList, schema.OptionalTensorList)):
            return [None if index < 0 else self._value(index) for index in value.items]
        if isinstance(value, schema.Null):
            return None
        content = next(iter(vars(value).values()))
        return float(content) if isinstance(value, schema.Double) else content

    def _stored(self, tensor: schema.Tensor) -> torch.Tensor:
        dtype, count = get_scalar_type(tensor.scalar_type), 1
        for size in tensor.sizes:
            count *= size
        if not tensor.data_buffer_idx:
            return torch.zeros(tensor.sizes, dtype=dtype)  # scratch memory
        storage = bytes(self._program.constant_buffer[tensor.data_buffer_idx].storage)
        flat = torch.frombuffer(bytearray(storage), dtype=dtype, count=count) if count else torch.zeros(0, dtype=dtype)
        order = list(tensor.dim_order)
        return flat.reshape([tensor.sizes[dim] for dim in order]).permute(
            [order.index(dim) for dim in range(len(order))]
        )

    def _empty(self, index: int) -> torch.Tensor:
        tensor: Any = self._plan.values[index].val
        return self._laid_out(index, torch.empty(tensor.sizes, dtype=get_scalar_type(tensor.scalar_type)))

    def _laid_out(self, index: int, result: Any) -> Any:
        """A result with its dimensions in the order in which the program has them in memory."""
        tensor: Any = self._plan.values[index].val
        if not isinstance(result, torch.Tensor) or not isinstance(tensor, schema.Tensor):
            return result
        order = list(tensor.dim_order)
        return result.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def _in_memory(value: torch.Tensor) -> torch.Tensor:
    """A tensor with its dimensions in the order of memory, as TOSA has them."""
    order = value.dim_order()
    return value.permute(order).contiguous()
