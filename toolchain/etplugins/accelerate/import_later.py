"""Runs modules of ExecuTorch and PyTorch when something of them is used, and not when they are imported.

Their packages import each other for a few names. To write a program, ExecuTorch imports all that lowers methods, for
the types of two arguments. Within this context, some modules wait: such a module is there, and so are its submodules,
but its code has not run. `from MODULE import NAME` in the code of another module gives a stand-in.

A waiting module runs when something is done with a stand-in: it is called, `isinstance` asks it, a class is derived
from it. Then all stand-ins for its names are replaced in the modules that imported them. No object of a module exists
before it runs, so nobody can compare a stand-in with what it stands for. After the context, a module that still waits
runs as soon as somebody asks for a name of it.

A module must wait only if nothing else depends on what its code does besides defining names. If it registers an
operator, for example, whoever looks for the operator fails.
"""

from __future__ import annotations

import contextlib
import importlib.util
import operator
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

_active: list[_Finder] = []
"""The contexts."""


class _Module(ModuleType):
    """A module that waits. Its class changes when it runs."""

    def __getattr__(self, name: str) -> Any:
        state: _State = vars(self)["__spec__"].loader_state
        if name.startswith("__") and name != "__all__" and name not in state.code.co_names:
            raise AttributeError(name)  # the import system asks for these
        if hasattr(self, "__path__") and importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        importer = _importing_module() if _active and not state.runs else None
        if importer is None:
            _run(self)
            found = ModuleType.__getattribute__ if type(self) is _Module else getattr  # it may still run
            return found(self, name)
        state.stand_ins.append(made := _StandIn(self, name, importer))
        return made


class _State:
    """The code of a module that waits, and the stand-ins for its names."""

    def __init__(self, code: CodeType) -> None:
        self.code, self.stand_ins = code, list[_StandIn]()
        self.lock, self.runs = threading.RLock(), False


def _importing_module() -> dict[str, Any] | None:
    """The names of the module that is importing now; None: a function does something else."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("importlib", "importlib._bootstrap"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_globals if frame.f_code.co_name == "<module>" else None


def _run(module: ModuleType) -> None:
    """Runs a module if it waits, or waits for the thread that runs it. After the contexts, packages run before what is
    in them, as always."""
    if isinstance(module, _Module):
        if not _active:
            _run_parents(module.__name__)
        spec = vars(module)["__spec__"]
        state: _State = spec.loader_state
        with state.lock:
            if state.runs or not isinstance(module, _Module):
                return
            state.runs = spec._initializing = True
            try:
                exec(state.code, vars(module))
            finally:
                state.runs = spec._initializing = False
            if isinstance(module, _Module):  # modules of settings change their class themselves
                object.__setattr__(module, "__class__", ModuleType)
            for stand_in in state.stand_ins:
                _real(stand_in)


def _run_parents(name: str) -> None:
    parts = name.split(".")
    for end in range(1, len(parts)):
        _run(sys.modules.get(".".join(parts[:end]), sys))


class _Parents:
    """Runs the packages that wait before others import what is in them, after the contexts."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> None:
        """Finds nothing: other finders do."""
        del path, target
        if not _active:
            _run_parents(name)


class _StandIn:
    """Stands for a name of a module that waits. Whatever is done with it is done with the object of that name."""

    def __init__(self, module: ModuleType, name: str, importer: dict[str, Any]) -> None:
        self.module, self.name, self.importer = module, name, importer

    def replace(self) -> Any:
        """Puts the object in the place of the stand-in, where it was imported. Returns the object."""
        module, name, importer = (object.__getattribute__(self, key) for key in ("module", "name", "importer"))
        _run(module)
        found = getattr(module, name)
        for key in [key for key, value in importer.items() if value is self]:
            importer[key] = found
        return found

    def __getattribute__(self, name: str) -> Any:
        if name == "__mro_entries__":  # Python asks each base for it, and not its type
            return object.__getattribute__(self, name)
        return getattr(_real(self), name)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[Any, ...]:
        return (_real(self),)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _real(self))

    def __subclasscheck__(self, cls: type) -> bool:
        return issubclass(cls, _real(self))


def _real(stand_in: _StandIn) -> Any:
    return object.__getattribute__(stand_in, "replace")()


def _forwarded(operation: Callable[..., Any]) -> Any:
    return lambda self, *arguments, **named: operation(_real(self), *arguments, **named)


for _name in ("call", "eq", "ne", "contains", "getitem", "or_", "index"):
    setattr(_StandIn, f"__{_name.rstrip('_')}__", _forwarded(getattr(operator, _name)))
for _function in (bool, len, iter, next, hash, repr, str):
    setattr(_StandIn, f"__{_function.__name__}__", _forwarded(_function))
_OTHERS: dict[str, Callable[..., Any]] = {
    "__ror__": lambda real, other: other | real,
    "__enter__": lambda real: type(real).__enter__(real),
    "__exit__": lambda real, *error: type(real).__exit__(real, *error),
}
for _operation, _forward in _OTHERS.items():
    setattr(_StandIn, _operation, _forwarded(_forward))


class _Finder:
    """Finds the modules that wait.

    Args:
        packages: The names of packages that wait, without what is below them.
        trees: The names of modules and packages that wait, with all that is below them.
        needed: The names of modules below them that run: they register operators.
    """

    def __init__(self, packages: Collection[str], trees: Collection[str], needed: Collection[str]) -> None:
        self._packages, self._trees, self._needed = frozenset(packages), tuple(trees), frozenset(needed)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of a module that waits; None for others."""
        waits = name in self._packages or any(f"{name}.".startswith(f"{tree}.") for tree in self._trees)
        if not waits or name in self._needed:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        assert code is not None, "it has a source"
        assert module.__spec__ is not None, "the import system has made it"
        module.__spec__.loader_state = _State(code)
        module.__class__ = _Module


@contextlib.contextmanager
def import_later(
    packages: Collection[str], trees: Collection[str] = (), needed: Collection[str] = ()
) -> Iterator[None]:
    """Returns a context manager in which these modules wait, unless they have been imported before. The arguments are
    those of `_Finder`."""
    finder = _Finder(packages, trees, needed)
    if _Parents not in sys.meta_path:
        sys.meta_path.insert(0, _Parents)
    sys.meta_path.insert(0, finder)
    _active.append(finder)
    try:
        yield
    finally:
        _active.remove(finder)
        sys.meta_path.remove(finder)


def waiting() -> list[str]:
    """The names of the modules that wait."""
    return [name for name, module in list(sys.modules.items()) if isinstance(module, _Module)]
