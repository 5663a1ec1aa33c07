"""Imports the declared sources. Of a user's own modules, only those that the key covers can be imported.

The code that runs is compiled from the content that was digested: no file is read twice, and bytecode is neither read
nor written. `undeclared` refuses what a source reads in other ways.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from etbuild.errors import ATTRIBUTES_OF_SOURCES, BuildError, DocumentPath, InputError, did_you_mean, printable
from etbuild.exception_text import chain, first_cause, hints, readable
from etbuild.files.value_limits import has_surrogate
from etbuild.foreign_errors import PASSING, from_exception, system_error, wrap_errors
from etbuild.inputs.source_lines import NO_LINES
from etbuild.inputs.sources import UsedSources
from etbuild.inputs.step_context import Watch
from etbuild.surroundings.process_state import undone


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a source from the content that was read before, even if its file or bytecode has changed since."""

    def __init__(self, name: str, file: str, content: bytes) -> None:
        super().__init__(name, file)
        self.content = content

    def get_data(self, path: str) -> bytes:
        """Called by importlib: reads the source, or a resource of its package."""
        return self.content if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        """Called by importlib: compiles the source. Stores its lines where `inspect` and tracebacks look for them, so
        that they do not read the file."""
        text = self.get_source(fullname) or ""
        linecache.cache[self.path] = (len(self.content), None, text.splitlines(keepends=True), self.path)
        return compile(self.content, self.path, "exec", dont_inherit=True, optimize=0)


class SourceFinder:
    """A meta path finder for the sources. Directories without `__init__.py` are namespace packages.

    Attributes:
        sources: The absolute paths of the files by import path.
        contents: The content of the files by import path.
        here: The working directory at first: code that is imported may change it, or remove it. None if it was removed.
        persistent: Names of modules that other code keeps, with the operators that they register.
        lines: The lines of the sources that the nodes of an export come from, if lowering reads one.
    """

    def __init__(self, used: UsedSources) -> None:
        self.sources = {name: path.absolute() for name, path in used.sources.items()}
        self.contents = used.contents
        self.here: Path | None = None
        with suppress(FileNotFoundError):
            self.here = Path.cwd()
        self.persistent: set[str] = set()
        self.lines = NO_LINES
        self.namespaces = {
            ".".join(parts[:length])
            for parts in (name.split("/")[:-1] for name in self.sources)
            for length in range(1, len(parts) + 1)
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called by importlib: finds a source, or a directory of sources."""
        del path, target
        stem = name.replace(".", "/")
        for candidate, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if candidate in self.sources:
                location = self.location(candidate)
                spec = importlib.util.spec_from_file_location(
                    name,
                    location,
                    loader=_Loader(name, location, self.contents[candidate]),
                    submodule_search_locations=[] if is_package else None,
                )
                if spec is not None and is_package:
                    spec.submodule_search_locations = []  # otherwise undeclared files next to it could be imported
                return spec
        if name in self.namespaces:
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = []
            return spec
        return None

    def location(self, name: str) -> str:
        """The file name of a source's code."""
        return str(self.sources[name])

    def top_level_names(self) -> set[str]:
        """The first parts of all import paths."""
        return {name.removesuffix(".py").split("/")[0] for name in self.sources}

    def loaded_modules(self) -> list[ModuleType]:
        """The modules of the sources that were imported so far."""
        tops = self.top_level_names()
        return [module for name, module in list(sys.modules.items()) if name.split(".")[0] in tops]

    def has(self, module: str | None) -> bool:
        """Whether a module is one of the sources."""
        stem = (module or "").replace(".", "/")
        return f"{stem}.py" in self.sources or f"{stem}/__init__.py" in self.sources

    def name_of(self, filename: str) -> str | None:
        """The import path of a source, from the file name in a traceback."""
        return next((name for name in self.sources if filename == self.location(name)), None)


_NO_SOURCES = SourceFinder(UsedSources())


def active_finder() -> SourceFinder:
    """The finder of the sources that are importable now. One without sources if none are."""
    return next((finder for finder in sys.meta_path if isinstance(finder, SourceFinder)), _NO_SOURCES)


@contextmanager
def importable(used: UsedSources, data: Iterable[Path], watch: Watch) -> Iterator[None]:
    """Makes sources importable before anything that is installed. Removes their modules at the end.

    Import PyTorch before: what it imports must not come from the sources.

    Args:
        used: The sources.
        data: Other files that the code may open.
        watch: Refuses what the code reads otherwise.

    Raises:
        InputError: A source hides a module that is loaded already, such as torch, or PyTorch cannot name its file.
        BuildError: The code has read something that no key covers, or has raised an exception.
    """
    finder = SourceFinder(used)
    hidden = finder.top_level_names() & set(sys.modules)
    if hidden:
        message = f"the source `{min(hidden)}` hides an installed module of that name"
        raise InputError.at(("model", "factory"), message, "rename the file or its directory")
    odd = [name for name in finder.sources if has_surrogate(finder.location(name))]
    if odd:
        place = printable(finder.location(odd[0]))
        message = f"the path of the source `{odd[0]}` is not UTF-8, and PyTorch cannot write it down: {place}"
        raise InputError.at(("model", "factory"), message, "rename the file or its directories")
    sys.meta_path.insert(0, finder)
    path, bytecode = sys.path[:], sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a build writes nothing next to its inputs
    files = {finder.location(name): name for name in finder.sources}
    try:
        with watch(files, data, used.packages), errors_of_sources():
            yield
    finally:
        sys.dont_write_bytecode = bytecode
        sys.path[:] = path
        sys.meta_path.remove(finder)
        forgotten = {
            name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in finder.top_level_names()
        }
        persistent = [module for name, module in forgotten.items() if name in finder.persistent]
        _unregister([module for name, module in forgotten.items() if name not in finder.persistent], persistent)
        for file in files:
            linecache.cache.pop(file, None)


@contextmanager
def errors_of_sources() -> Iterator[None]:
    """Names the line of a source for exceptions of its code, wherever it was called: a hook runs while weights load."""
    try:
        yield
    except PASSING:
        raise
    except Exception as error:
        if source_line(error) is None or isinstance(error, MemoryError) or system_error(error) is not None:
            raise
        message = failed("code of the model", error)
        raise from_exception(readable(error), BuildError, ("model", "factory"), message, package_line(error)) from error


def _unregister(modules: list[ModuleType], persistent: list[ModuleType]) -> None:
    """Undoes what removed modules have registered with PyTorch, so that they can be imported again. Leaves operators of
    persistent modules registered: these modules will be put back."""
    library = getattr(sys.modules.get("torch.library"), "Library", None)
    if library is None:
        return
    libraries = {
        id(value): value for module in modules for value in vars(module).values() if isinstance(value, library)
    }
    if libraries:  # some may belong to an installed package, which stays
        staying = [*persistent, *sys.modules.values()]
        libraries = {key: value for key, value in libraries.items() if not _is_held(value, staying)}
    for value in libraries.values():
        value._destroy()


def _is_held(value: Any, modules: list[ModuleType]) -> bool:
    return any(value is part for module in modules for part in list(vars(module).values()))


def load_callable(reference: str, path: DocumentPath) -> Callable[..., Any]:
    """Imports the callable that `module:callable` names. A declared source must define it: a manifest by itself runs
    nothing, so what a source has imported is not for it.

    Args:
        reference: The text in the manifest.
        path: The place of the text in the manifest.

    Raises:
        InputError: The module has no such callable, or another one defines it.
        BuildError: Importing the module failed. The error names the source line.
    """
    module_name, _, attribute = reference.partition(":")
    value: Any = import_module(module_name, path)
    for number, part in enumerate(attribute.split(".")):
        if number and not _defines(active_finder(), value):
            raise _not_defined(reference, path)
        if not hasattr(value, part):
            known = [name for name in dir(value) if not name.startswith("_")]
            raise InputError.at(path, f"`{module_name}` has no `{attribute}`", did_you_mean(part, known))
        value = getattr(value, part)
        if isinstance(value, ModuleType) or part.startswith("__"):
            raise _not_defined(reference, path)
    if not callable(value):
        raise InputError.at(path, f"`{reference}` is not callable")
    if not _defines(active_finder(), value):
        raise _not_defined(reference, path)
    return value  # type: ignore[no-any-return]


def _not_defined(reference: str, path: DocumentPath) -> InputError:
    module_name, _, attribute = reference.partition(":")
    last = attribute.split(".")[-1]
    message = f"`{module_name}` does not define `{attribute}`: a manifest calls nothing that a source imports"
    return InputError.at(path, message, f"define a function in `{module_name}` that calls `{last}`, and name that")


def _defines(finder: SourceFinder, value: Any) -> bool:
    """Whether a source defines an object: a function or a class by its module or its code, a method and any other
    object by its class. A decorator may have changed one of them. Inherited parts of a class count as its own."""
    if isinstance(value, MethodType):
        owner = value.__self__
        return _defines(finder, owner if isinstance(owner, type) else type(owner))
    if isinstance(value, (BuiltinFunctionType, MethodWrapperType, MethodDescriptorType, WrapperDescriptorType)):
        return False
    if code := getattr(value, "__code__", None):
        return finder.name_of(code.co_filename) is not None or finder.has(value.__module__)
    if isinstance(value, type):
        return finder.has(value.__module__)
    if isinstance(value, functools.partial):
        return _defines(finder, value.func)
    wrapped = getattr(value, "__dict__", {}).get("__module__")  # of a function that is wrapped in an object
    return finder.has(wrapped if isinstance(wrapped, str) else type(value).__module__)


def import_module(name: str, path: DocumentPath) -> ModuleType:
    """Imports a module of the declared sources.

    Args:
        name: The name of the module.
        path: The place in the manifest that names the module.

    Raises:
        BuildError: Importing it failed. The error names the source line.
    """
    with wrap_user_error(path, f"importing `{name}`"):
        return importlib.import_module(name)


@contextmanager
def wrap_user_error(path: DocumentPath, action: str) -> Iterator[None]:
    """Turns every exception of user code inside into a BuildError that names the manifest's place and the source line.

    If the exception did not pass through a declared source, the message names no line.

    Args:
        path: The place in the manifest that names the code.
        action: What the code does, such as "`model:create`".
    """

    def convert(error: BaseException) -> BuildError:
        hint = hints(_hint(error), package_line(error))
        made = from_exception(error, BuildError, path, failed(action, error), hint)
        if _missing_module(error) is not None:
            made.problems = [replace(problem, attributes=ATTRIBUTES_OF_SOURCES) for problem in made.problems]
        return made

    with wrap_errors(convert), undone():
        yield


def failed(action: str, error: BaseException, line: str | None = None) -> str:
    """For a message: "ACTION failed at model.py:12, in forward".

    Args:
        action: What was done.
        error: The exception.
        line: The source line to name if the exception passed through no source.
    """
    place = source_line(error) or line
    return f"{action} failed at {from_here(place)}" if place else f"{action} failed"


def from_here(place: str) -> str:
    """A line of a source, `net.py:12, in forward`, with the file's path from the working directory, as messages name
    the manifest. The import path stays if the file is elsewhere."""
    name = place.partition(":")[0]
    finder = active_finder()
    path, here = finder.sources.get(name), finder.here
    if path is None or here is None or not path.is_relative_to(here):
        return place
    return f"{path.relative_to(here).as_posix()}{place[len(name) :]}"


def source_line(error: BaseException) -> str | None:
    """`model.py:12, in forward`: the innermost line of a declared source that the error or its cause passed through."""
    finder = active_finder()
    for current in chain(error):
        if isinstance(current, SyntaxError) and (name := finder.name_of(current.filename or "")):
            return f"{name}:{current.lineno}"
        for frame, number in reversed(list(walk_tb(current.__traceback__))):
            if name := finder.name_of(frame.f_code.co_filename):
                return f"{name}:{number}, in {frame.f_code.co_name}"
    return None


_OF_TENSORS = {*sys.stdlib_module_names, "etbuild", "etplugins", "executorch", "functorch", "numpy", "torch", "torchao"}
"""Packages below the model: their lines do not say what a model does."""


def package_line(error: BaseException) -> str | None:
    """`it was raised in timm.layers.pool, line 12, in forward`: the innermost line of a package that the model calls.

    Returns:
        None if a declared source, or PyTorch that it calls, has raised the error.
    """
    finder = active_finder()
    for frame, number in reversed(list(walk_tb(error.__traceback__))):
        code = frame.f_code
        if finder.name_of(code.co_filename):
            return None
        if of_package(frame):
            return f"it was raised in {frame.f_globals.get('__name__', '')}, line {number}, in {code.co_name}"
    return None


def of_package(frame: FrameType) -> bool:
    """Whether a function is neither the driver's nor one of PyTorch and what it uses, so that a model may be in it."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] not in _OF_TENSORS and not frame.f_code.co_filename.startswith("<")


def _hint(error: BaseException) -> str | None:
    operator = re.search(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'", str(error))
    if operator:
        name = "::".join(operator.groups())
        return f"no operator `{name}` is registered: list the library or module that registers it under `custom_ops`"
    missing = _missing_module(error)
    if missing is not None:
        return (
            f"is `{missing}` a source of yours? Declare it; if its name is computed, list it in `model.modules`. "
            f"Is it a package? `pip install {missing.partition('.')[0]}`; in Bazel, add it to the toolchain"
        )
    return None


def _missing_module(error: BaseException) -> str | None:
    """The module that an import did not find. None if the error is another one."""
    missing = first_cause(error)  # transformers raises one without a name from another one
    return missing.name if isinstance(missing, ModuleNotFoundError) else None
