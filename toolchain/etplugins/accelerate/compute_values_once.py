"""Computes the value of an operator once, however many passes replay it.

Most passes of ExecuTorch end with `ExportPass.call`, which runs the graph on fake tensors, node by node, into a new
graph. About twenty passes replay a method. PyTorch caches results of operators on fake tensors, but a look into its
cache takes most of the time of a replay: it describes all arguments again, and makes a new tensor. The verifier of the
edge dialect replays the method once more after each group of passes, to see the dtypes of arguments.

Here each fake tensor is described once. An operator whose arguments have equal descriptions gives the result of an
earlier replay. The n-th operator of a replay with certain arguments gets the n-th result for them, so that two nodes of
a graph never share a value. Tensors with known content are compared by identity, and so are the arguments of an
operator whose result is a view. Results of operators that read data or make new symbols are not kept. Values must not
be changed in place; passes replace `meta["val"]` instead.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.verification.arg_validator import EdgeOpArgValidator
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, TensorMetadata, extract_tensor_metadata
from torch.fx import Interpreter
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from etbuild.patching import replaced

_LITERALS = (
    *(type(None), bool, int, float, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_READS_MORE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_FIELDS = [field.name for field in dataclasses.fields(TensorMetadata)]

_compute = Interpreter.call_function


class _Unknown(Exception):
    """The result of an operator depends on something that cannot be compared."""


class _Memory:
    """The results of operators, by operator and arguments."""

    def __init__(self) -> None:
        self._results: dict[Hashable, list[Any]] = {}
        self._counts: weakref.WeakKeyDictionary[Interpreter, collections.Counter[Hashable]]
        self._counts = weakref.WeakKeyDictionary()
        self._descriptions: dict[Hashable, int] = {}
        # By identity. The objects are kept, so that no other object gets the same identity.
        self._kinds: dict[int, tuple[FakeTensor, int]] = {}
        self._compared: dict[int, object] = {}

    def call(self, replay: Interpreter, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator in a replay, which has its own interpreter."""
        try:
            key = self._key(target, args, kwargs)
        except _Unknown:
            return _compute(replay, target, args, kwargs)
        results = self._results.setdefault(key, [])
        counts = self._counts.setdefault(replay, collections.Counter())
        number = counts[key]
        counts[key] += 1
        if number < len(results):
            return results[number]
        result = _compute(replay, target, args, kwargs)
        if number == len(results) and not _new_symbols(result, args):  # an operator in between may have failed
            results.append(result)
        return result

    def _key(self, target: Any, args: Any, kwargs: Any) -> Hashable:
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if mode is None or torch._C._len_torch_dispatch_stack() > 1:  # another mode wants to see each call
            raise _Unknown
        operator = _operator(target)
        aliased = isinstance(operator, OpOverload) and any(result.alias_info for result in operator._schema.returns)
        surroundings = self._same(mode), torch.is_grad_enabled(), torch.get_default_dtype()
        return surroundings, operator, self._describe(args, aliased), self._describe(kwargs, aliased)

    def _describe(self, value: Any, aliased: bool) -> Hashable:
        if isinstance(value, _LITERALS):
            return type(value), repr(value) if isinstance(value, float) else value  # 0.0 is not -0.0
        if isinstance(value, (tuple, list)):
            return tuple([self._describe(element, aliased) for element in value])
        if isinstance(value, dict):
            return tuple([(name, self._describe(element, aliased)) for name, element in value.items()])
        if isinstance(value, _SYMBOLS):
            return type(value), self._same(value.node.shape_env), value.node.expr
        if isinstance(value, FakeTensor) and not aliased:
            return self._kind(value)
        if isinstance(value, torch.Tensor) or hasattr(value, "processed_bytes"):  # the latter is a delegate
            return self._same(value)
        raise _Unknown

    def _kind(self, tensor: FakeTensor) -> Hashable:
        """A number that is the same for tensors with equal descriptions."""
        if tensor.constant is not None:
            return self._same(tensor)
        if id(tensor) not in self._kinds:
            described = extract_tensor_metadata(tensor)
            description = self._describe([getattr(described, field) for field in _FIELDS], aliased=False)
            number = self._descriptions.setdefault(description, len(self._descriptions))
            self._kinds[id(tensor)] = tensor, number
        return self._kinds[id(tensor)][1]

    def _same(self, value: object) -> Hashable:
        self._compared[id(value)] = value
        return "same", id(value)


def _operator(target: Any) -> Any:
    """The operator that computes. It is the same for an operator of PyTorch and its form in the edge dialect."""
    if target is executorch_call_delegate:
        return target
    operator = target._op if isinstance(target, EdgeOpOverload) else target
    if not isinstance(operator, OpOverload) or operator._schema.is_mutable or _READS_MORE & set(operator.tags):
        raise _Unknown
    return operator


def _new_symbols(result: Any, args: Any) -> bool:
    """Whether a result has symbols for unknown sizes that its arguments do not have."""
    symbols = free_unbacked_symbols(result)
    known = [value for value in pytree.tree_leaves(args) if isinstance(value, (torch.Tensor, *_SYMBOLS))]
    return bool(symbols and symbols - free_unbacked_symbols(known))


def compute_values_once() -> AbstractContextManager[None]:
    """Returns a context manager in which replays of passes use results of earlier replays."""
    memory = _Memory()

    def call_function(self: Interpreter, target: Any, args: Any, kwargs: Any) -> Any:
        # Passes compute with a plain interpreter of an empty graph.
        of_pass = type(self) is Interpreter and len(self.graph.nodes) == 0
        if of_pass or isinstance(self, EdgeOpArgValidator):
            return memory.call(self, target, args, kwargs)
        return _compute(self, target, args, kwargs)

    return replaced(Interpreter, "call_function", call_function)
