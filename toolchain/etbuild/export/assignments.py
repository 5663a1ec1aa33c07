"""What a method assigns to what it finds. `torch.export` follows what is written into a tensor, and what is assigned to
a buffer of the module that it exports. All else that is assigned is lost.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode

from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.export.own_buffers import following_own_buffers
from etbuild.export.python_state import BUFFERS, PARAMETERS, Change, PythonState
from etbuild.model.tied_weights import memory

_ATEN = torch.ops.aten
_CASTS = {
    *(_ATEN.to.dtype, _ATEN.to.other, _ATEN.to.device, _ATEN.to.dtype_layout, _ATEN.type_as.default),
    *(_ATEN._to_copy.default, _ATEN.clone.default),
}
_OF_DYNAMO = "While compiling, we found certain side effects"


@dataclass
class Assigned:
    """What was assigned while a method was traced.

    Attributes:
        buffers: Names of buffers. What is assigned to them is lost.
        attributes: By name, what places that are neither buffers nor parameters held before. What is assigned to them
            is lost.
        kept: Names of buffers of which `torch.export` keeps what is assigned.
        retyped: The own dtype of those of `kept` that have got tensors of another one, and that one.
        reshaped: The own shape of those of `buffers` that have got tensors of another one, and that one.
        made: Names of parameters that the method makes.
        unclear: TorchDynamo says that the method changes its modules, and not whether it writes or assigns.
        casts: Those of these names that a run has left with what they held, in another dtype or on another device.
    """

    buffers: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    retyped: dict[str, tuple[torch.dtype, torch.dtype]] = field(default_factory=dict)
    reshaped: dict[str, tuple[torch.Size, torch.Size]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    unclear: bool = False
    casts: set[str] = field(default_factory=set)

    def note(self, changes: Iterable[Change]) -> None:
        """Adds what was assigned to other places than buffers."""
        for change in changes:
            self.attributes.setdefault(change.name, change.before)

    def wants_run(self, program: ExportedProgram) -> bool:
        """Whether only a run of the method tells what it assigns, and whether that changes what it computes."""
        return self.unclear or bool(self._read(program))

    def add(self, ran: Assigned) -> None:
        """Adds what a run of the method has assigned."""
        self.buffers += [name for name in ran.buffers if name not in self.kept]
        self.attributes = {**ran.attributes, **self.attributes}
        self.made += ran.made
        self.casts |= ran.casts

    def check(self, program: ExportedProgram, path: DocumentPath) -> None:
        """Whether the method does the same at each call without what was assigned.

        Args:
            program: The method.
            path: Where the manifest has it.

        Raises:
            BuildError: It does not: eager code would find at the next call what it has assigned at this one.
        """
        read = self._read(program) - self.casts  # a second cast changes nothing: `self.index = self.index.to(x)`
        problems = [self._lost(name, path) for name in sorted(read)]
        retyped = [name for name in sorted(self.retyped) if not _keeps_value(program, name)]
        problems += [_retyped(name, *self.retyped[name], path) for name in retyped]
        problems += [_made(name, path) for name in sorted(set(self.made))]
        if problems:
            raise BuildError(problems)
        for name in sorted({*self.buffers, *self.attributes}):
            print(f"note: `{path[1]}` assigns to `{name}`: no later call finds it there", file=sys.stderr)

    def _read(self, program: ExportedProgram) -> set[str]:
        """Of what is lost, the names of tensors that the method reads as they were before it."""
        targets = _read(program)
        constants = [program.constants[target] for target in targets & program.constants.keys()]
        places = {memory(constant) for constant in constants if _is_tensor(constant)}
        by_content = {
            name for name, before in self.attributes.items() if _is_tensor(before) and memory(before) in places
        }
        return ({*self.buffers, *self.attributes} & targets) | by_content

    def _lost(self, name: str, path: DocumentPath) -> Problem:
        if name in self.reshaped:
            own, other = (tuple(shape) for shape in self.reshaped[name])
            message = (
                f"the method assigns a tensor of shape {other} to the buffer `{name}`, which keeps the shape {own}"
            )
            return Problem(message, path, "register the buffer in its final shape in the factory")
        message = f"the method reads `{name}` and assigns to it, and torch.export loses what is assigned"
        if name in self.buffers:
            return Problem(message, path, f"write into a buffer instead: `{name}.copy_(...)`")
        return Problem(message, path, "register it as a buffer, and write into it with `copy_(...)`")


def _keeps_value(program: ExportedProgram, name: str) -> bool:
    """Whether all that a method writes to a buffer is what it held, in another dtype."""
    inputs = {spec.arg.name for spec in program.graph_signature.input_specs if spec.target == name}
    written = [
        node.args[1]
        for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        if getattr(node.args[0], "name", None) in inputs
    ]
    for node in written:
        while node.op == "call_function" and node.target in _CASTS:
            node = node.args[0]
        if node.name not in inputs:
            return False
    return True


def _retyped(name: str, own: torch.dtype, other: torch.dtype, path: DocumentPath) -> Problem:
    message = f"the method assigns {other} to the buffer `{name}`, which is {own} and stays so in a program"
    return Problem(message, path, f"register the buffer as {other}, or convert what is assigned")


def _made(name: str, path: DocumentPath) -> Problem:
    message = f"the method makes the parameter `{name}` when it runs, and a program would make it at each call"
    return Problem(message, path, "make it in the factory")


def _read(program: ExportedProgram) -> set[str]:
    """The names of the tensors that a method reads what they held before it."""
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    return {spec.target for spec in specs if spec.target is not None and inputs[spec.arg.name].users}


@contextmanager
def watched(module: torch.nn.Module, sources: Iterable[ModuleType] = ()) -> Iterator[Assigned]:
    """Collects what a method assigns while it is traced inside, and puts back what it has changed.

    Args:
        module: What is exported.
        sources: The modules of a user's code.
    """
    found, state = Assigned(), PythonState(module, sources)
    children = {name: child for name, child in module.named_modules() if name}

    def look() -> None:
        found.note(state.changes())
        found.made += [change.name for change in state.changes(PARAMETERS) if change.before is None]
        state.restore(tensors_of_modules=False)

    try:
        with (
            _assigned_buffers(children, found.buffers),
            _side_effects(found),
            following_own_buffers(look) as own,
        ):
            yield found
            found.kept |= own.kept
            found.retyped |= own.retyped
            found.reshaped |= own.reshaped
            found.buffers += [name for name in own.lost if own.was_there(name)]
            found.attributes |= {name: None for name in own.lost if not own.was_there(name)}
    finally:
        state.restore()


def assigned_when_run(
    module: torch.nn.Module, run: Callable[[], object], sources: Iterable[ModuleType] = ()
) -> Assigned:
    """What a run of a method assigns. It leaves the module as it was.

    Args:
        module: What is exported.
        run: Runs the method.
        sources: The modules of a user's code.
    """
    modules, found, state = dict(module.named_modules()), Assigned(), PythonState(module, sources)
    contents = [(tensor, tensor.clone()) for tensor in state.tensors() if 0 not in tensor.stride()]
    written = _Written(module)
    with torch.no_grad(), _same_random_numbers():
        try:
            with _assigned_buffers(modules, found.buffers), written:
                run()
        finally:
            others, of_buffers = list(state.changes()), list(state.changes(BUFFERS))
            found.made += [change.name for change in state.changes(PARAMETERS) if change.before is None]
            state.restore()
            for tensor, content in [*contents, *written.before.values()]:
                tensor.copy_(content)
    found.note(others)
    found.buffers += [change.name for change in of_buffers]
    changes = [change for change in (*others, *of_buffers) if _is_tensor(change.before)]
    found.casts = {change.name for change in changes if _is_cast(change.before, change.after)}
    return found


class _Written(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the content of parameters that are written to: to copy all would take as much memory as the model."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._parameters = {_storage(parameter): parameter for parameter in module.parameters()}
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            for value in [*args, *(kwargs or {}).values()]:
                key = _storage(value) if isinstance(value, torch.Tensor) else None
                if key in self._parameters and key not in self.before:
                    self.before[key] = (self._parameters[key], self._parameters[key].clone())
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """What draws numbers afterwards gets those that it would have got without what runs inside."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_cast(before: torch.Tensor, after: Any) -> bool:
    """Whether a tensor is another one in a new dtype or on a new device.

    Equal content alone does not tell: to add zeros to a state changes nothing either, and the next input may be others.
    """
    if not isinstance(after, torch.Tensor) or before.shape != after.shape:
        return False
    if (before.dtype, before.device) == (after.dtype, after.device):
        return False
    # As bytes: NaN is equal to itself, and not every dtype can be compared.
    cast, found = (value.detach().contiguous().flatten().view(torch.uint8) for value in (before.to(after), after))
    return bool(torch.equal(cast, found))


@contextmanager
def _assigned_buffers(modules: dict[str, torch.nn.Module], found: list[str]) -> Iterator[None]:
    """Collects the names of the buffers to which another tensor is assigned inside."""
    names = {id(module._buffers): name for name, module in modules.items()}

    def assign(owner: torch.nn.Module, name: str, value: Any) -> None:
        buffers = vars(owner)["_buffers"]  # the owner may be torch.export's stand-in for a module
        if id(buffers) in names and name in buffers and buffers[name] is not value:
            found.append(_joined(names[id(buffers)], name))

    hook = torch.nn.modules.module.register_module_buffer_registration_hook(assign)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _side_effects(found: Assigned) -> Iterator[None]:
    """Notes that TorchDynamo warns of side effects, and leaves other warnings as they are."""
    show = warnings.showwarning

    def collect(message: Warning | str, *rest: Any, **keywords: Any) -> None:
        if str(message).startswith(_OF_DYNAMO):
            found.unclear = True
        else:
            show(message, *rest, **keywords)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_OF_DYNAMO)
        warnings.showwarning = collect
        yield


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
