"""Loads custom operators from the shared libraries and Python modules that the manifest declares."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from etbuild.errors import BuildError, DocumentPath
from etbuild.exception_text import chain
from etbuild.files.digests import file_digest
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import active_finder, import_module
from etbuild.plan.parts import CustomOps

# Libraries and modules stay loaded: a process can register an operator only once. Export and lowering both load custom
# operators, and may run in one process.
_loaded: set[str] = set()  # the digests of libraries
_registered: set[str] = set()  # `NAMESPACE::NAME` and `NAMESPACE::NAME.OVERLOAD` of operators that `load` registered


@dataclass(frozen=True)
class _Imported:
    """The modules of the declared sources that one import loaded, by name; and the sha256 of their files, by path."""

    modules: dict[str, ModuleType]
    digests: dict[str, str]


_imported: dict[str, _Imported] = {}


def is_declared(operator: str) -> bool:
    """Whether `load` registered an operator.

    Args:
        operator: The name in its schema: `NAMESPACE::NAME` or `NAMESPACE::NAME.OVERLOAD`.
    """
    return operator in _registered


def load(custom_ops: CustomOps, context: StepContext) -> None:
    """Registers custom operators: first those of libraries, then those of modules.

    Args:
        custom_ops: The libraries and modules of an export plan or a lower plan.
        context: The declared inputs of the step.

    Raises:
        InputError: A library is not declared.
        BuildError: A library cannot be loaded, or a module cannot be imported.
    """
    before = set(torch._C._dispatch_get_all_op_names())
    try:
        _load_all(custom_ops, context)
    finally:
        _registered.update(set(torch._C._dispatch_get_all_op_names()) - before)


def _load_all(custom_ops: CustomOps, context: StepContext) -> None:
    for index, name in enumerate(custom_ops.libraries):
        path = ("custom_ops", "libraries", index)
        file = context.inputs.find_data(name, path)
        digest = file_digest(file)
        if digest in _loaded:
            continue
        hint = "build it for this version of PyTorch, and register each operator in one library only"
        with wrap_library_errors(BuildError, path, f"cannot load `{name}`", hint), _linked(name, path):
            torch.ops.load_library(file.absolute())
        _loaded.add(digest)
    for index, name in enumerate(custom_ops.modules):
        _import(name, ("custom_ops", "modules", index))


@contextlib.contextmanager
def _linked(name: str, path: DocumentPath) -> Iterator[None]:
    """Names the library that a declared library links, if it cannot be opened. No key covers a library that is neither
    declared, nor installed, nor part of the system."""
    try:
        yield
    except OSError as error:
        text = " ".join(map(str, chain(error)))
        found = re.search(r"(\S+): cannot open shared object file: (?:Permission denied|No such file)", text)
        if found is None or Path(found[1]).name == Path(name).name:
            raise
        hint = f"list `{Path(found[1]).name}` under `custom_ops.libraries` too, before `{name}`"
        raise BuildError.at(path, f"`{name}` loads {found[1]}, which is not a declared file", hint) from error


def _import(name: str, path: DocumentPath) -> None:
    finder = active_finder()
    earlier = _imported.get(name)
    if earlier is not None and earlier.digests == _digests(earlier.digests):
        sys.modules.update(earlier.modules)
        finder.persistent.update(earlier.modules)
        return
    before = set(sys.modules)
    import_module(name, path)
    top_level_names = finder.top_level_names()
    modules = {new: sys.modules[new] for new in set(sys.modules) - before if new.split(".")[0] in top_level_names}
    finder.persistent.update(modules)
    names = [finder.name_of(module.__file__) for module in modules.values() if module.__file__]
    _imported[name] = _Imported(modules, _digests(filter(None, names)))


def _digests(names: Iterable[str]) -> dict[str, str]:
    contents = active_finder().contents
    return {name: hashlib.sha256(contents[name]).hexdigest() for name in names if name in contents}
