"""Backends of other packages: instances of `Backend`, by entry points of the group `etbuild.backends`."""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.backends.backend import Backend, Need, Pairing
from etbuild.errors import InputError, Problem

GROUP = "etbuild.backends"


def names() -> set[str]:
    """The names of them all."""
    return {entry.name for entry in _entries()}


@functools.cache
def _entries() -> importlib.metadata.EntryPoints:
    """The entry points of the group. Looking for them reads a file of each installed distribution."""
    return importlib.metadata.entry_points(group=GROUP)


@functools.cache
def load(name: str) -> Backend | None:
    """The backend of this name of another package. No other entry point is loaded: what is not used may be broken.

    Raises:
        InputError: It cannot be loaded, or is no backend.
    """
    entries = _entries().select(name=name)
    if not entries:
        return None
    [entry, *more] = entries
    where = f"the entry point `{name}` of the group `{GROUP}` ({entry.value})"
    if more:
        raise InputError([Problem(f"{where} has the name of another one ({more[0].value})")])
    try:
        backend = entry.load()
    except Exception as error:  # whatever the package raises when it is imported
        from etbuild.exception_text import summary

        raise InputError([Problem(f"{where} cannot be loaded: {summary(error)}")]) from error
    wrong = _what_is_wrong(backend, name)
    if wrong is not None:
        raise InputError([Problem(f"{where} {wrong}")])
    return backend  # type: ignore[no-any-return]


def _what_is_wrong(backend: Any, name: str) -> str | None:
    """What makes the object that an entry point names unfit for a backend."""
    if not isinstance(backend, Backend) or backend.name != name:
        return "is no `etbuild.backends.Backend` of that name"
    if not (backend.create is None or callable(backend.create)):
        return "has a `create` that cannot be called"
    if not _is_tuple_of(Need, backend.needs):
        return "has `needs` that are no tuple of `etbuild.backends.Need`"
    if not (backend.pairing is None or isinstance(backend.pairing, Pairing)):
        return "has a `pairing` that is no `etbuild.backends.Pairing`"
    for field in ("fold_quantize", "separable", "weight_only", "whole_program"):
        if not isinstance(getattr(backend, field), bool):
            return f"has `{field}` that is neither True nor False"
    # Both look at all methods: one lowers them together, the other has one configuration for the whole program.
    for field in ("edge", "pairing"):
        if backend.separable and getattr(backend, field) is not None:
            return f"is `separable` and has `{field}`: write `separable=False`, or leave `{field}` out"
    for field in ("distributions", "same_options"):
        if not _is_tuple_of(str, getattr(backend, field)):
            return f"has `{field}` that are no tuple of strings"
    schemas = {"options": backend.options}
    if backend.create_quantizer is not None:
        schemas["quantizer_options"] = backend.quantizer_options
    for field, path in schemas.items():
        if not isinstance(path, Path):
            return f"needs `{field}`, the `pathlib.Path` of a file with the JSON Schema"
        try:
            json_schema.check(path)
        except (OSError, ValueError) as error:
            from etbuild.exception_text import summary

            return f"has `{field}` without a JSON Schema: {summary(error)}"
    return None


def _is_tuple_of(kind: type, value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, kind) for each in value)


@functools.cache
def owner(name: str) -> str | None:
    """The distribution that a backend of another package comes from."""
    entries = _entries().select(name=name)
    return next((entry.dist.name for entry in entries if entry.dist is not None), None)
