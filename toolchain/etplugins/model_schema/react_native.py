"""The schema that react-native-executorch reads from the constant method `get_model_schema`.

The form is that of `cpp/core/schema.cpp` in software-mansion/react-native-executorch (0b303119, August 2026): for each
method inputs, outputs, and what sizes of inputs must have in common. The library refuses a schema that contradicts the
program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, TensorArgument
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from etbuild.errors import BuildError, DocumentPath

_DTYPES = ("bool", "uint8", "int32", "int64", "float32")
_KINDS: tuple[tuple[type, str], ...] = ((bool, "Bool"), (int, "Int"), (float, "Double"), (str, "String"))
_LARGEST = 2**31 - 1


def described(programs: Mapping[str, ExportedProgram], path: DocumentPath) -> str:
    """The schema of all methods, as JSON.

    Args:
        programs: The exported methods by name.
        path: The place in the manifest that asks for it.

    Raises:
        BuildError: The library has no word for an input or output.
    """
    methods = {name: _Method(name, programs[name], path).described() for name in sorted(programs)}
    return json.dumps(methods, separators=(",", ":"))


class _Method:
    """A method and its sizes."""

    def __init__(self, name: str, program: ExportedProgram, path: DocumentPath) -> None:
        self._name, self._program, self._path = name, program, path
        self._nodes = {node.name: node for node in program.graph.nodes}

    def described(self) -> dict[str, Any]:
        """Its inputs and outputs, and the constraints between sizes of inputs."""
        signature = self._program.graph_signature
        inputs = [each.arg for each in signature.input_specs if each.kind.name == "USER_INPUT"]
        outputs = [each.arg for each in signature.output_specs if each.kind.name == "USER_OUTPUT"]
        return {
            "inputs": [self._value(f"input {index}", each) for index, each in enumerate(inputs)],
            "outputs": [self._value(f"output {index}", each) for index, each in enumerate(outputs)],
            "runtimeConstraints": [*self._constraints([each for each in inputs if isinstance(each, TensorArgument)])],
        }

    def _value(self, what: str, argument: Any) -> dict[str, Any]:
        if isinstance(argument, ConstantArgument):
            value = argument.value
            kind = next((word for of, word in _KINDS if isinstance(value, of)), "None" if value is None else None)
            if kind in (None, "String"):  # ExecuTorch passes no texts
                kind = "None"
            return {"kind": kind}
        if not isinstance(argument, TensorArgument):
            kind = type(argument).__name__.removesuffix("Argument")
            raise self._error(what, f"it is a {kind} that the method computes")
        tensor: torch.Tensor = self._nodes[argument.name].meta["val"]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise self._error(what, f"it is a tensor of {dtype}, and the library knows {', '.join(_DTYPES)}")
        return {"kind": "Tensor", "dtype": dtype, "shape": [self._dim(what, size) for size in tensor.shape]}

    def _dim(self, what: str, size: Any) -> dict[str, Any]:
        expression = _expression(size)
        if expression.is_number:
            if not 0 < int(expression) <= _LARGEST:
                raise self._error(what, f"it has a dimension of size {int(expression)}")
            return {"kind": "constant", "value": int(expression)}
        limits = bound_sympy(expression, self._ranges(expression))
        if not limits.upper.is_integer or limits.upper > _LARGEST:
            raise self._error(what, f"the size {expression} has no upper bound")
        low = max(0, int(limits.lower)) if limits.lower.is_integer else 0
        step = _factor(expression)
        return {"kind": "range", "range": {"min": low, "max": int(limits.upper), "step": step}}

    def _ranges(self, expression: sympy.Expr) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """The ranges of the symbols in a size. PyTorch keeps that of a dimension such as `8 * s` under this expression
        too, where the smallest size is that of the manifest; a symbol begins at 2."""
        found: dict[sympy.Symbol, ValueRanges[Any]] = {}
        for limited, limits in self._program.range_constraints.items():
            symbols = [*limited.free_symbols]
            if len(symbols) != 1 or symbols[0] not in expression.free_symbols:
                continue
            times, plus = _line(limited, symbols[0])
            if times is None or times < 1 or not limits.upper.is_integer or not limits.lower.is_integer:
                continue
            low, high = -((plus - int(limits.lower)) // times), (int(limits.upper) - plus) // times
            if (known := found.get(symbols[0])) is not None:
                low, high = min(low, int(known.lower)), min(high, int(known.upper))
            found[symbols[0]] = ValueRanges(low, high)
        return found

    def _constraints(self, inputs: Sequence[TensorArgument]) -> Iterator[dict[str, Any]]:
        """What the sizes of inputs have in common: equal ones, and those that follow from another one."""
        places: dict[sympy.Expr, list[dict[str, Any]]] = {}
        for tensor, argument in enumerate(inputs):
            for dim, size in enumerate(self._nodes[argument.name].meta["val"].shape):
                if not (expression := _expression(size)).is_number:
                    place = {"paramSide": "input", "tensorIdx": tensor, "dimIdx": dim}
                    places.setdefault(expression, []).append(place)
        for equal in places.values():
            if len(equal) > 1:
                yield {"kind": "equality", "dims": equal}
        for expression, found in places.items():
            symbols = [*expression.free_symbols]
            if expression.is_symbol or len(symbols) != 1 or symbols[0] not in places:
                continue
            times, plus = _line(expression, symbols[0])
            if times is not None:
                coefficients = [times, plus]
                yield {
                    "kind": "linear",
                    "dimLhs": found[0],
                    "dimRhs": places[symbols[0]][0],
                    "coefficients": coefficients,
                }

    def _error(self, what: str, why: str) -> BuildError:
        message = f"react-native-executorch cannot describe {what} of `{self._name}`: {why}"
        return BuildError.at(self._path, message, "convert it in a wrapper around the model, or leave the schema out")


def _expression(size: Any) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _line(expression: sympy.Expr, symbol: sympy.Symbol) -> tuple[int | None, int]:
    """The whole numbers A and B of an expression A * SYMBOL + B; None for another expression."""
    times = expression.coeff(symbol, 1)
    plus = sympy.expand(expression - times * symbol)
    return (int(times), int(plus)) if times.is_Integer and plus.is_Integer else (None, 0)


def _factor(expression: sympy.Expr) -> int:
    """The distance between two sizes."""
    symbols = [*expression.free_symbols]
    times = _line(expression, symbols[0])[0] if len(symbols) == 1 else None
    return 1 if times is None or times < 1 else times
