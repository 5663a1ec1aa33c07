"""What a method assigns to tensors of its modules. `torch.export` follows what is written into a tensor, and what is
assigned to a buffer of the module that it exports. All else that is assigned is lost, and it warns at most.
"""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode

from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.folding import folded

_OF_EXPORT = "The tensor attribute"
_OF_DYNAMO = "While compiling, we found certain side effects"


@dataclass
class Assigned:
    """What was assigned while a method was traced, and is lost.

    Attributes:
        buffers: Names of buffers.
        attributes: Names of attributes that are neither buffers nor parameters.
        unclear: TorchDynamo says that the method changes its modules, and not whether it writes or assigns.
        casts: Those of these names that a run has left with what they held, in another dtype or on another device.
    """

    buffers: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    unclear: bool = False
    casts: set[str] = field(default_factory=set)

    def wants_run(self, program: ExportedProgram) -> bool:
        """Whether only a run of the method tells what it assigns, and whether that changes what it computes."""
        return self.unclear or bool(_read(program) & {*self.buffers, *self.attributes})

    def add(self, ran: Assigned) -> None:
        """Adds what a run of the method has assigned."""
        self.buffers += ran.buffers
        self.attributes += ran.attributes
        self.casts |= ran.casts

    def check(self, program: ExportedProgram, path: DocumentPath) -> None:
        """Whether the method does the same at each call without what was assigned.

        Args:
            program: The method.
            path: Where the manifest has it.

        Raises:
            BuildError: It does not: eager code would find at the next call what it has assigned at this one.
        """
        read = _read(program) - self.casts  # a second cast changes nothing: `self.index = self.index.to(x)`
        names = sorted({*self.buffers, *self.attributes})
        problems = [self._lost(name, path) for name in names if name in read]
        if problems:
            raise BuildError(problems)
        notes = [Problem(f"`{path[1]}` assigns to `{name}`: later calls do not see the value") for name in names]
        for note in folded(notes):
            print(f"note: {note}", file=sys.stderr)

    def _lost(self, name: str, path: DocumentPath) -> Problem:
        message = f"the method reads `{name}` and assigns to it, but torch.export loses the assignment"
        if name in self.buffers:
            return Problem(message, path, f"write to a buffer instead: `{name}.copy_(...)`")
        return Problem(message, path, f"register it as a buffer, and write to it: `{name}.copy_(...)`")


def _read(program: ExportedProgram) -> set[str | None]:
    """The names of the tensors that a method reads what they held before it."""
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return {spec.target for spec in program.graph_signature.input_specs if inputs[spec.arg.name].users}


@contextmanager
def watched(module: torch.nn.Module) -> Iterator[Assigned]:
    """Collects what is lost of what a method assigns while it is traced inside.

    Args:
        module: What is exported.
    """
    found = Assigned()
    children = {name: child for name, child in module.named_modules() if name}
    with _assigned_buffers(children, found.buffers), _warnings(found):
        yield found


def assigned_when_run(module: torch.nn.Module, run: Callable[[], object]) -> Assigned:
    """What a run of a method assigns. It leaves the module as it was.

    Args:
        module: What is exported.
        run: Runs the method.
    """
    modules, found = dict(module.named_modules()), Assigned()
    attributes = {name: (dict(vars(child)), dict(child._buffers)) for name, child in modules.items()}
    tensors = [value for each in attributes.values() for of in each for value in of.values() if _is_tensor(value)]
    contents = {id(tensor): (tensor, tensor.clone()) for tensor in tensors}
    written = _Written(module)
    with torch.no_grad(), _same_random_numbers():
        try:
            with _assigned_buffers(modules, found.buffers), written:
                run()
        finally:
            after = {name: {**vars(child), **child._buffers} for name, child in modules.items()}
            for name, (own, buffers) in attributes.items():
                found.attributes += [_joined(name, key) for key in _other_tensors(own, modules[name].__dict__)]
                _restore(modules[name].__dict__, own)
                _restore(modules[name]._buffers, buffers)
            for tensor, content in [*contents.values(), *written.before.values()]:
                tensor.copy_(content)
    for name, (own, buffers) in attributes.items():
        before = {key: value for key, value in {**own, **buffers}.items() if _is_tensor(value)}
        found.casts |= {_joined(name, key) for key, value in before.items() if _is_cast(value, after[name].get(key))}
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
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


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
def _warnings(found: Assigned) -> Iterator[None]:
    """Collects what torch warns of, and leaves other warnings as they are."""
    show = warnings.showwarning

    def collect(message: Warning | str, *rest: Any, **keywords: Any) -> None:
        text = str(message)
        if text.startswith(_OF_EXPORT):
            found.attributes += re.findall(r"self\.([\w.]+)", text.partition(" assigned during")[0])
        elif text.startswith(_OF_DYNAMO):
            found.unclear = True
        else:
            show(message, *rest, **keywords)

    with warnings.catch_warnings():
        for text in (_OF_EXPORT, _OF_DYNAMO):
            warnings.filterwarnings("always", message=text)
        warnings.showwarning = collect
        yield


def _restore(content: dict[str, Any], before: dict[str, Any]) -> None:
    content.clear()
    content.update(before)


def _other_tensors(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key, value in after.items() if isinstance(value, torch.Tensor) and before.get(key) is not value]


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
