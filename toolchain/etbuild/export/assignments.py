"""The assignments of methods when they run. A plug-in keeps or refuses each; without one, all are refused.

`torch.export` keeps writes into tensors, and assignments to buffers of the exported module itself. It loses all other
assignments: later calls and methods of a program would compute something else than the model.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from etbuild import plugins
from etbuild.errors import BuildError, DocumentPath
from etbuild.guard import children
from etbuild.inputs.user_code import active_finder, wrap_user_error

_GROUP, _NAME = "method_watch", "assignments"
_ASSUMED = 2  # torch.export assumes that each dynamic size is at least this
_FOREIGN = ("torch", "torchao", "executorch", "numpy", "sympy", "threading", "_thread")
"""Packages whose objects hold no state of a model, except modules."""


@dataclass(frozen=True)
class EagerMethod:
    """A method as eager PyTorch runs it.

    Attributes:
        module: The module that is exported.
        root: The module whose `forward` is the method: `module`, or one with the same content.
        inputs: Its positional and its keyword example inputs.
        entry: Its name in Python, for messages.
        path: The document path of the entry.
        is_only: Whether the program has no other method that could read what this one assigns.
    """

    module: torch.nn.Module
    root: torch.nn.Module
    inputs: tuple[Any, Any]
    entry: str
    path: DocumentPath
    is_only: bool


class MethodWatch(Protocol):
    """Finds the assignments of methods, and compares calls of exported methods with calls in eager PyTorch."""

    def traced(self, method: EagerMethod, trace: Callable[[], ExportedProgram]) -> ExportedProgram:
        """Traces a method, so that its program keeps assignments to buffers of the module. Undoes changes in Python.

        Raises:
            BuildError: The program loses an assignment that matters; or an error of `trace`.
        """

    def differing_sizes(self, method: EagerMethod, program: ExportedProgram, dims: list[Any]) -> str | None:
        """The shapes of inputs with a size of 0 or 1 for which an exported method gives something else than the module.

        Args:
            method: The method.
            program: The exported method.
            dims: The dimensions of each leaf of the inputs in the form of torch.export; None if all are fixed.

        Returns:
            The shapes as a text; None if there are none.
        """


def traced(method: EagerMethod, trace: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Does what `MethodWatch.traced` does. Without a plug-in, fails if the method assigns anything."""
    if _NAME not in plugins.group(_GROUP):
        return _without_assignments(method, trace)
    watch: MethodWatch = plugins.load(_GROUP, _NAME)
    return watch.traced(method, trace)


def differing_sizes(method: EagerMethod, program: ExportedProgram, dims: list[Any]) -> str | None:
    """Does what `MethodWatch.differing_sizes` does.

    Raises:
        InputError: There is no plug-in, and a size may be 0 or 1.
    """
    dynamic = [dim for of_leaf in dims for dim in of_leaf or () if dim is not torch.export.Dim.STATIC]
    if all(min(dim.min, getattr(dim, "root", dim).min) >= _ASSUMED for dim in dynamic):
        return None
    watch: MethodWatch = plugins.load(_GROUP, _NAME)
    return watch.differing_sizes(method, program, dims)


def _without_assignments(method: EagerMethod, trace: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Traces a method that assigns nothing. A run in a child process shows that."""
    what = f"running `{method.entry}`"
    names = children.run({what: functools.partial(_assigned_in_run, method)}, 1)[what]
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        message = f"the method assigns to {listed} when it runs, which needs the plug-in `{_NAME}`"
        raise BuildError.at(method.path, message, "add the plug-in to the driver, or assign nothing in the method")
    return trace()


def _assigned_in_run(method: EagerMethod) -> list[str]:
    """The assignments of a method in a run on its example inputs: attributes and globals, or kinds of objects."""
    arguments, keywords = method.inputs
    tensors = [*method.module.named_parameters(), *method.module.named_buffers()]
    memories = [(name, tensor, tensor.untyped_storage()._cdata) for name, tensor in tensors]
    before = _holders([method.module, *active_finder().loaded_modules()])
    with wrap_user_error(method.path, f"running `{method.entry}` on the example inputs"), torch.no_grad():
        method.root(*arguments, **keywords)
    names = {name for holder, parts in before for name in _changed(holder, parts)}
    names |= {name for name, tensor, memory in memories if tensor.untyped_storage()._cdata != memory}  # `.data = ...`
    return sorted(names)


def _holders(roots: Iterable[object]) -> list[tuple[object, dict[object, object]]]:
    """The objects that a model reaches, each with its parts."""
    sources = {id(root): root for root in roots}
    names = {root.__name__ for root in sources.values() if isinstance(root, ModuleType)}
    found: dict[int, tuple[object, dict[object, object]]] = {}
    waiting = [*sources.values()]
    while waiting:
        value = waiting.pop()
        if id(value) in found or (id(value) not in sources and _is_leaf(value, names)):
            continue
        found[id(value)] = (value, _parts(value))
        waiting += found[id(value)][1].values()
    return [*found.values()]


def _is_leaf(value: object, sources: set[str]) -> bool:
    """Whether an object has no state of a model: it is a tensor, or belongs to a library."""
    kind = type(value)
    if issubclass(kind, type):
        return value.__module__ not in sources
    is_module = issubclass(kind, torch.nn.Module)
    return issubclass(kind, (torch.Tensor, ModuleType)) or (
        kind.__module__.partition(".")[0] in _FOREIGN and not is_module
    )


def _parts(value: object) -> dict[object, object]:
    """The parts of an object: the values of a dictionary by their keys, and all others by their numbers."""
    if type(value) is dict:
        return {key: part for key, part in value.items() if key != "__warningregistry__"}
    if isinstance(value, FunctionType):  # not the globals of libraries
        return dict(enumerate([value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]))
    with suppress(AttributeError):
        object.__getattribute__(value, "__dict__")  # from now on, Python keeps this dictionary
    return dict(enumerate(gc.get_referents(value)))


def _changed(holder: object, before: dict[object, object]) -> Iterator[str]:
    """The names of the parts of an object that were replaced."""
    now = _parts(holder)
    for key in {**before, **now}:
        if key not in now or key not in before or now[key] is not before[key]:
            yield key if isinstance(key, str) else type(holder).__name__
