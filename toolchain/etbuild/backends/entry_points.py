"""Loads the backends of other packages: subclasses of `Backend` in entry points of the group `etbuild.backends`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.backends.backend import Backend, BuiltInBackend, InterfaceError, make
from etbuild.errors import InputError
from etbuild.exception_text import summary

GROUP = "etbuild.backends"


def names() -> set[str]:
    """Returns the names of all backends of other packages. Loads none of them."""
    return {entry.name for entry in _entries()}


@functools.cache
def _entries() -> Any:
    """Returns the `EntryPoints` of the group. Cached: the search reads a file of each installed distribution."""
    from importlib import metadata  # takes longer than a check of a manifest, which hardly ever needs it

    return metadata.entry_points(group=GROUP)


@functools.cache
def load(name: str) -> Backend | None:
    """Loads the backend of this name from another package. Other entry points are not loaded, since they may be broken.

    Returns:
        The backend. None if no package has one of this name.

    Raises:
        InputError: The package cannot be imported, or its class does not fit the interface of `Backend`.
    """
    entries = _entries().select(name=name)
    if not entries:
        return None
    [entry, *more] = entries
    where = f"the entry point `{name}` of the group `{GROUP}` ({entry.value})"
    if more:
        raise InputError.of(f"{where} has the name of another one ({more[0].value})")
    try:
        return _make(entry.load(), name)
    except InterfaceError as error:
        raise InputError.of(f"{where}: {error}") from error
    except Exception as error:  # importing the package may raise anything
        raise InputError.of(f"{where} cannot be loaded: {summary(error)}") from error


def _make(kind: object, name: str) -> Backend:
    """Makes the backend from the object that the entry point of this name refers to."""
    if not (isinstance(kind, type) and issubclass(kind, Backend)) or issubclass(kind, BuiltInBackend):
        raise InterfaceError("it has to be a subclass of `etbuild.backends.Backend`")
    backend = make(kind)
    if backend.name != name:
        raise InterfaceError(f"`name` is `{backend.name}`: it has to be that of the entry point")
    _check_schema(backend.options_schema, "options_schema")
    if backend.has_quantizer:
        _check_schema(backend.quantizer_schema, "quantizer_schema")
    return backend


def _check_schema(path: object, attribute: str) -> None:
    if not isinstance(path, Path):
        raise InterfaceError(f"`{attribute}` has to be the `pathlib.Path` of a file with a JSON Schema")
    try:
        json_schema.check(path)
    except (OSError, ValueError) as error:
        raise InterfaceError(f"`{attribute}` names no JSON Schema: {summary(error)}") from error


@functools.cache
def owner(name: str) -> str | None:
    """Returns the distribution that a backend of another package comes from. None if it is unknown."""
    entries = _entries().select(name=name)
    return next((entry.dist.name for entry in entries if entry.dist is not None), None)
