"""What a method assigns to tensors of its modules. `torch.export` follows what is written into a tensor, and what is
assigned to a buffer of the module that it exports. All else that is assigned is lost, and it warns at most.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.errors import BuildError, DocumentPath, Problem

_OF_EXPORT = "The tensor attribute"
_OF_DYNAMO = "While compiling, we found certain side effects"


@dataclass
class Assigned:
    """What was assigned while a method was traced, and is lost.

    Attributes:
        buffers: Names of buffers.
        attributes: Names of attributes that are neither buffers nor parameters.
        unclear: TorchDynamo says that the method changes its modules, and not whether it writes or assigns.
    """

    buffers: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    unclear: bool = False

    def check(self, program: ExportedProgram, path: DocumentPath) -> None:
        """Whether the method does the same at each call without what was assigned.

        Args:
            program: The method.
            path: Where the manifest has it.

        Raises:
            BuildError: It does not: eager code would find at the next call what it has assigned at this one.
        """
        read = _read(program)
        names = sorted({*self.buffers, *self.attributes})
        message = "the method reads `{}` and assigns to it, and torch.export loses what is assigned"
        hint = "write into a buffer instead: `{}.copy_(...)`"
        problems = [Problem(message.format(name), path, hint.format(name)) for name in names if name in read]
        if problems:
            raise BuildError(problems)
        for name in names:
            print(f"note: `{path[1]}` assigns to `{name}`: no later call finds it there", file=sys.stderr)


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
    contents = [(tensor, tensor.clone()) for tensor in [*module.buffers(), *module.parameters()]]
    attributes = {name: (dict(vars(child)), dict(child._buffers)) for name, child in modules.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with _assigned_buffers(modules, found.buffers):
                run()
        finally:
            for name, (own, buffers) in attributes.items():
                found.attributes += [_joined(name, key) for key in _other_tensors(own, modules[name].__dict__)]
                _restore(modules[name].__dict__, own)
                _restore(modules[name]._buffers, buffers)
            for tensor, content in contents:
                tensor.copy_(content)
    return found


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
