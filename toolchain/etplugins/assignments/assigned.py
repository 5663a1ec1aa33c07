"""Finds the assignments of a method, and fails if a program would lose one that matters.

`torch.export` keeps writes into tensors, and assignments to buffers of the exported module itself. It loses all other
assignments.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from etbuild import notes
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.exception_text import hints
from etbuild.export.written_buffers import read_tensors
from etbuild.foreign_errors import PASSING
from etbuild.model.tensor_bytes import flat_bytes
from etbuild.model.tied_weights import memory
from etplugins.assignments.own_buffers import same_shape, storage, writing_own_buffers
from etplugins.assignments.python_state import BUFFERS, PARAMETERS, PythonState, TensorChange

_ATEN = torch.ops.aten
_CASTS = {
    *(_ATEN.to.dtype, _ATEN.to.other, _ATEN.to.device, _ATEN.to.dtype_layout, _ATEN.type_as.default),
    *(_ATEN._to_copy.default, _ATEN.clone.default),
}
_DYNAMO_WARNING = "While compiling, we found certain side effects"


@dataclass
class Assigned:
    """The assignments of a method while it was traced.

    Attributes:
        buffers: Names of buffers whose assignments are lost.
        attributes: The previous values of other attributes, elements and globals whose assignments are lost, by name.
        written: Names of buffers that the exported method writes to when it ends, because the method assigns them.
        shared: Names in `written` of buffers whose tensor has a second name: a program changes both.
        retyped: Names in `written` that got a tensor of another dtype: the buffer's dtype and the new one.
        reshaped: Names in `buffers` that got a tensor of another shape: the buffer's shape and the new one.
        new_parameters: Names of parameters that the method creates.
        unclear: Whether TorchDynamo reports a change of modules. That may be a write or an assignment.
        casts: Names whose values were only converted to another dtype or device in a run.
        atoms: Names of changed attributes of modules whose values are numbers, texts and the like.
    """

    buffers: list[str] = field(default_factory=list)
    attributes: dict[str, object] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    retyped: dict[str, tuple[torch.dtype, torch.dtype]] = field(default_factory=dict)
    reshaped: dict[str, tuple[torch.Size, torch.Size]] = field(default_factory=dict)
    new_parameters: list[str] = field(default_factory=list)
    unclear: bool = False
    casts: set[str] = field(default_factory=set)
    atoms: set[str] = field(default_factory=set)

    def note(self, changes: Iterable[TensorChange]) -> None:
        """Adds changes to `attributes`. If a name has several changes, the first one has the previous value."""
        for change in changes:
            self.attributes.setdefault(change.name, change.before)

    def lose(self, name: str, before: Any, after: Any) -> None:
        """Notes that an assignment to a buffer is lost. `before` and `after` are the buffer's values, or None."""
        self.buffers.append(name)
        if _is_tensor(before) and _is_tensor(after) and not same_shape(before, after):
            self.reshaped[name] = (before.shape, after.shape)

    def wants_run(self, program: ExportedProgram) -> bool:
        """Whether only a run shows the assignments: TorchDynamo is unclear, or the method reads a lost one."""
        return self.unclear or bool(self._read(program))

    def add(self, in_run: Assigned) -> None:
        """Adds the assignments of a run, and removes those that only tracing made.

        Tracing replaces parameters, so code like `self._flat_weights[0] = self.weight_ih_l0` of `torch.nn.LSTM` assigns
        another tensor while it is traced, and the same parameter when it runs.
        """
        self.buffers += [name for name in in_run.buffers if name not in self.written]
        self.attributes = {name: self.attributes.get(name, before) for name, before in in_run.attributes.items()}
        self.new_parameters += in_run.new_parameters
        self.casts |= in_run.casts

    def check(self, program: ExportedProgram, path: DocumentPath) -> None:
        """Checks that the program reads no value that an earlier call should have assigned.

        Args:
            program: The exported method.
            path: The document path of its entry.

        Raises:
            BuildError: The method reads such a value, assigns another dtype to a buffer, or makes a parameter.
        """
        stale = self._read(program) - self.casts  # a second cast changes nothing: `self.index = self.index.to(x)`
        problems = [self._lost(name, path) for name in sorted(stale)]
        retyped = [name for name in sorted(self.retyped) if not _keeps_value(program, name)]
        problems += [_retyped(name, *self.retyped[name], path) for name in retyped]
        problems += [_new_parameter(name, path) for name in sorted(set(self.new_parameters))]
        BuildError.raise_if(problems)

    def check_calls(
        self,
        differ: Callable[[], bool],
        path: DocumentPath,
        only_method: bool,
        lines_of: Callable[[Iterable[str]], str | None],
    ) -> None:
        """Compares two calls in a row with PyTorch, and prints a note for each assignment that other methods may miss.

        Args:
            differ: Whether the second call gives something else than in eager PyTorch: `calls_differ`.
            path: The document path of the method's entry.
            only_method: Whether the program has only this method, so that no other one can read the assigned values.
            lines_of: Returns a hint with the lines of the sources that assign to these names.

        Raises:
            BuildError: The second call gives something else than in eager PyTorch.
        """
        names = sorted({*self.buffers, *self.attributes})
        suspects = {*names, *self.atoms, *self.shared}
        if suspects and differ():
            listed = ", ".join(f"`{name}`" for name in sorted(suspects))
            message = "a second call gives something else than in PyTorch: torch.export loses what the first assigns to"
            hint = "register the state between calls as a buffer, and write to it with `copy_(...)`"
            raise BuildError.at(path, f"{message} {listed}", hints(lines_of(suspects), hint))
        for name in () if only_method else names:
            notes.add(f"`{path[1]}` assigns to `{name}`: other methods do not see the value")

    def _read(self, program: ExportedProgram) -> set[str]:
        """The names of tensors whose assignments are lost and whose previous values the method reads."""
        targets = read_tensors(program)
        constants = [program.constants[target] for target in targets & program.constants.keys()]
        memories = {memory(constant) for constant in constants if _is_tensor(constant)}
        by_content = {
            name for name, before in self.attributes.items() if _is_tensor(before) and memory(before) in memories
        }
        return ({*self.buffers, *self.attributes} & targets) | by_content

    def _lost(self, name: str, path: DocumentPath) -> Problem:
        if name in self.reshaped:
            old, new = (tuple(shape) for shape in self.reshaped[name])
            message = f"the method assigns a tensor of shape {new} to the buffer `{name}`, whose shape stays {old}"
            return Problem(message, path, "register the buffer in its final shape in the factory")
        message = f"the method reads `{name}` and assigns to it, but torch.export loses the assignment"
        if name in self.buffers:
            return Problem(message, path, f"write to the buffer instead: `{name}.copy_(...)`")
        return Problem(message, path, "register it as a buffer, and write to it with `copy_(...)`")


def _keeps_value(program: ExportedProgram, name: str) -> bool:
    """Whether a method only writes a buffer's own value, converted to another dtype, to the buffer."""
    inputs = {spec.arg.name for spec in program.graph_signature.input_specs if spec.target == name}
    sources = [
        node.args[1]
        for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        if getattr(node.args[0], "name", None) in inputs
    ]
    for node in sources:
        while node.op == "call_function" and node.target in _CASTS:
            node = node.args[0]
        if node.name not in inputs:
            return False
    return True


def _retyped(name: str, old: torch.dtype, new: torch.dtype, path: DocumentPath) -> Problem:
    message = f"the method assigns {new} to the buffer `{name}`, which is {old} and stays so in a program"
    return Problem(message, path, f"register the buffer as {new}, or convert the assigned tensor")


def _new_parameter(name: str, path: DocumentPath) -> Problem:
    message = f"the method makes the parameter `{name}` when it runs, and a program would make it at each call"
    return Problem(message, path, "make it in the factory")


@contextmanager
def watched(module: torch.nn.Module, sources: Iterable[ModuleType] = ()) -> Iterator[Assigned]:
    """Collects the assignments of a method that is traced within this context, and undoes them on exit.

    Args:
        module: The module that is exported.
        sources: The Python modules of the user's code.
    """
    assigned, state = Assigned(), PythonState(module, sources)
    registered = dict(module.named_modules())

    def collect() -> None:
        assigned.note(state.changes())
        # torch.export replaces the buffers of registered modules. Modules in plain lists are unknown to it.
        assigned.note(change for change in state.changes(BUFFERS) if change.name.rpartition(".")[0] not in registered)
        assigned.new_parameters += [change.name for change in state.changes(PARAMETERS) if change.before is None]
        assigned.atoms.update(state.changed_atoms())
        state.restore(tensors_of_modules=False)

    try:
        with _side_effects(assigned), writing_own_buffers(assigned, collect):
            yield assigned
    finally:
        state.restore()


def assigned_when_run(
    module: torch.nn.Module, run: Callable[[], object], sources: Iterable[ModuleType] = ()
) -> Assigned:
    """The assignments of a method in one run. Its changes of the module are undone.

    Args:
        module: The module that is exported.
        run: Runs the method.
        sources: The Python modules of the user's code.
    """
    assigned, state = Assigned(), PythonState(module, sources)
    contents = [(tensor, tensor.clone()) for tensor in state.tensors if 0 not in tensor.stride()]
    memories = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
    parameter_copies = _ParameterCopies(module)
    # A run compiles control flow. In a dispatch mode, TorchDynamo refuses that, and later calls would fail too.
    with torch.no_grad(), _same_random_numbers(), torch.compiler.set_stance("force_eager"):
        try:
            with parameter_copies:
                run()
        finally:
            attribute_changes, buffer_changes = list(state.changes()), list(state.changes(BUFFERS))
            assigned.new_parameters += [change.name for change in state.changes(PARAMETERS) if change.before is None]
            state.restore()
            for tensor, memory_before in memories:  # a method may assign `self.state.data = ...`
                tensor.data = memory_before
            for tensor, content in [*contents, *parameter_copies.before.values()]:
                tensor.copy_(content)
    assigned.note(attribute_changes)
    assigned.buffers += [change.name for change in buffer_changes]
    changes = [change for change in (*attribute_changes, *buffer_changes) if _is_tensor(change.before)]
    assigned.casts = {change.name for change in changes if _is_cast(change.before, change.after)}
    return assigned


def other_inputs(inputs: Any) -> Any:
    """Copies of inputs with other floating-point numbers: with zeros, different computations may give the same result.

    Args:
        inputs: Tensors and plain values, in any structure.
    """

    def shifted(value: Any) -> Any:
        if not _is_tensor(value):
            return copy.deepcopy(value)
        can_add = value.is_floating_point() and value.element_size() > 1  # PyTorch cannot add numbers of 8 bits
        return value + 0.7 if can_add else value.clone()

    return pytree.tree_map(shifted, inputs)


def calls_differ(
    module: torch.nn.Module,
    root: torch.nn.Module,
    program: ExportedProgram,
    inputs: tuple[Any, Any],
    sources: Iterable[ModuleType],
) -> bool:
    """Whether an exported program agrees with PyTorch in a first call, but not in a second one.

    Args:
        module: The module that is exported.
        root: The module whose `forward` is the method.
        program: The exported method.
        inputs: The positional and the keyword inputs of the second call. The first call has other inputs if possible.
        sources: The Python modules of the user's code.
    """
    for change in (other_inputs, copy.deepcopy):
        try:
            calls = [change(inputs), inputs]
            eager = results(module, root, calls, sources)
            exported = results(module, program.module(check_guards=False), calls, sources)
            return are_close(eager[0], exported[0]) and not are_close(eager[1], exported[1])
        except PASSING:
            raise
        except Exception:  # noqa: BLE001 - the model may refuse these inputs
            continue
    return False


def results(
    module: torch.nn.Module, called: Callable[..., Any], calls: Iterable[tuple[Any, Any]], sources: Iterable[ModuleType]
) -> list[list[Any]]:
    """The results of several calls in a row, each as a list of leaves. Changes of the module are undone.

    Args:
        module: The module that is exported.
        called: The module or function that is called.
        calls: The positional and the keyword inputs of each call. The calls get copies.
        sources: The Python modules of the user's code.
    """
    results_of_calls: list[list[Any]] = []

    def run() -> None:
        torch.manual_seed(0)
        for inputs in calls:
            copies: dict[int, torch.Tensor] = {}  # the same tensor may be two inputs
            arguments, keywords = pytree.tree_map_only(
                torch.Tensor,
                lambda tensor, copies=copies: copies.setdefault(id(tensor), tensor.detach().clone()),
                inputs,
            )
            leaves = pytree.tree_leaves(called(*arguments, **keywords))
            results_of_calls.append(pytree.tree_map_only(torch.Tensor, _copied, leaves))

    assigned_when_run(module, run, sources)
    return results_of_calls


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; of a complex tensor, the pairs that a program returns."""
    return torch.view_as_real(tensor.resolve_conj()).clone() if tensor.is_complex() else tensor.clone()


def are_close(first: list[Any], second: list[Any]) -> bool:
    """Whether results are equal, apart from rounding by other kernels or in another order of operations."""
    return len(first) == len(second) and all(map(_is_close, first, second))


def _is_close(first: Any, second: Any) -> bool:
    """Whether two results are equal, or differ little in relation to the largest element of the first."""
    if not (_is_tensor(first) and _is_tensor(second)):
        return bool(first == second)
    if first.shape != second.shape:
        return False
    both = (first, second)
    if first.numel() == 0 or not all(tensor.is_floating_point() or tensor.is_complex() for tensor in both):
        return bool(torch.equal(first, second))
    epsilon = max(torch.finfo(tensor.dtype).eps for tensor in both)
    first, second = (
        tensor.to(torch.complex128 if any(map(torch.is_complex, both)) else torch.float64) for tensor in both
    )
    scale = float(first.abs().nan_to_num(0, 0, 0).max())
    return bool(torch.allclose(first, second, rtol=0, atol=max(1e-4, 8 * epsilon) * scale, equal_nan=True))


class _ParameterCopies(TorchDispatchMode):  # type: ignore[misc]
    """Copies each parameter before its first write. A copy of all parameters would take as much memory as the model.

    Branches and loops of control flow are not watched: they cannot write to parameters.

    Attributes:
        before: The written parameters and their previous content, by the number of their memory.
    """

    supports_higher_order_operators = True

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._parameters = {storage(parameter): parameter for parameter in module.parameters()}
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            for value in [*args, *(kwargs or {}).values()]:
                key = storage(value) if isinstance(value, torch.Tensor) else None
                if key in self._parameters and key not in self.before:
                    self.before[key] = (self._parameters[key], self._parameters[key].clone())
        return func(*args, **(kwargs or {}))


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restores the random number generators of Python, NumPy and torch on exit."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - models use it
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - as above


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_cast(before: torch.Tensor, after: Any) -> bool:
    """Whether `after` is `before` in another dtype or on another device.

    Equal content in the same form is no cast: a state stays equal if a method adds an input of zeros.
    """
    if not isinstance(after, torch.Tensor) or before.shape != after.shape:
        return False
    if (before.dtype, before.device) == (after.dtype, after.device):
        return False
    # Compared as bytes: NaN must equal itself, and some dtypes have no comparison.
    return bool(torch.equal(flat_bytes(before.to(after)), flat_bytes(after)))


@contextmanager
def _side_effects(assigned: Assigned) -> Iterator[None]:
    """Within this context, TorchDynamo's warning about side effects sets `assigned.unclear` instead."""
    show = warnings.showwarning

    def collect(message: Warning | str, *rest: Any, **keywords: Any) -> None:
        if str(message).startswith(_DYNAMO_WARNING):
            assigned.unclear = True
        else:
            show(message, *rest, **keywords)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_DYNAMO_WARNING)
        warnings.showwarning = collect
        yield
