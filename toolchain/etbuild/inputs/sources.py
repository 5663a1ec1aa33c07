"""The sources that code uses: what import statements reach, and their content."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etbuild.errors import InputError
from etbuild.inputs.given import is_file

Find = Callable[[str], Path | None]
"""Returns the source with an import path, such as `models/backbone.py`; None if there is none."""


@dataclass
class UsedSources:
    """The sources that a plan uses.

    Attributes:
        sources: The sources that the plan's callables reach through import statements, by import path, sorted.
        packages: The top-level names that these sources import from elsewhere, without Python's own modules.
        contents: The content of each source, by import path. Each file is read only once, so the content that is
            digested is also the content that runs.
    """

    sources: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    contents: dict[str, bytes] = field(default_factory=dict)


def read_sources(sources: Mapping[str, Path]) -> UsedSources:
    """Reads all of the given sources, even those that nothing imports.

    Raises:
        InputError: A source cannot be read, or is not Python.
    """
    used = UsedSources(dict(sources), set(), {name: _read(name, path) for name, path in sources.items()})
    return reached_sources(used, [_module_of(name) for name in sorted(sources)])


def _module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def reached_sources(used: UsedSources, modules: Iterable[str]) -> UsedSources:
    """The sources that the import statements of some modules reach, including those modules. Reads no file again."""
    reached = UsedSources(contents=dict(used.contents))
    for module in modules:
        follow(used.sources.get, module, reached)
    reached.contents = {name: reached.contents[name] for name in reached.sources}
    return reached


def follow(find: Find, module: str, used: UsedSources) -> bool:
    """Adds a module, the packages that contain it, and what it imports. Returns False if it is not a source."""
    parts = module.split(".")
    name, path = locate(find, parts)
    if path is None:
        return False
    if name in used.sources:
        return True
    used.sources[name] = path
    content = used.contents[name] = used.contents[name] if name in used.contents else _read(name, path)
    for length in range(1, len(parts)):
        if find("/".join([*parts[:length], "__init__.py"])) is not None:
            follow(find, ".".join(parts[:length]), used)
    package = parts if name.endswith("/__init__.py") else parts[:-1]
    for imported in _imports(content, name, package):
        # In `from a.b import c`, c may be a module a.b.c or a value in a.b. The statement also imports a and a.b.
        pieces = imported.split(".")
        for length in range(len(pieces), 0, -1):
            if follow(find, ".".join(pieces[:length]), used):
                break
        else:
            if pieces[0] not in sys.stdlib_module_names:
                used.packages.add(pieces[0])
    return True


def locate(find: Find, parts: list[str]) -> tuple[str, Path | None]:
    """The import path and the file of a module, from the parts of its name. The file is None if it is not a source."""
    for name in ("/".join([*parts, "__init__.py"]), "/".join(parts) + ".py"):
        path = find(name)
        if path is not None:
            return name, path
    return "", None


def _read(name: str, path: Path) -> bytes:
    try:
        if not is_file(path):
            raise OSError(0, "it is not a file" if os.path.lexists(path) else "there is no such file")
        return path.read_bytes()
    except OSError as error:
        message = f"cannot read the source `{name}` from {path}: {error.strerror}"
        raise InputError.at(("model", "factory"), message) from None


def _parse(content: bytes, name: str) -> ast.Module:
    """The syntax tree of a source. Raises InputError if it is not valid Python."""
    hint = None
    try:
        return ast.parse(content)
    except SyntaxError as error:
        why = f"line {error.lineno}: {error.msg}"
        hint = "Python {}.{} has read it: is this the syntax of a newer one?".format(*sys.version_info)
    except ValueError as error:
        why = str(error)
    except (RecursionError, MemoryError):  # the parser raises these when its stack is full
        why, hint = "an expression or a chain of `elif` in it is too long for Python's parser", "split it"
    raise InputError.at(("model", "factory"), f"the source `{name}` is not valid Python: {why}", hint)


def _imports(content: bytes, name: str, package: list[str]) -> Iterator[str]:
    """The full names that a source imports. Some may be values in a module and not modules."""
    for node in ast.walk(_parse(content, name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = _absolute(node.module or "", node.level, package)
            if stem:
                yield from (f"{stem}.{alias.name}" if alias.name != "*" else stem for alias in node.names)
            else:
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and (called := _imported_by_call(node)):
            absolute = called.lstrip(".")
            yield _absolute(absolute, len(called) - len(absolute), package)


def _absolute(name: str, level: int, package: list[str]) -> str:
    """The full name of an import that has `level` dots before its name."""
    base = package[: len(package) - level + 1] if level else []
    return ".".join([*base, *([name] if name else [])])


def _imported_by_call(call: ast.Call) -> str | None:
    """The name in `importlib.import_module("NAME")` or `__import__("NAME")`; None for any other call."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    first = call.args[0] if call.args else None
    if function not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
        return None
    return first.value if isinstance(first.value, str) and first.value.strip(".") else None
