"""Resolves the types of each class only once when exported programs are loaded.

`torch.export.load` calls `typing.get_type_hints` for each object in the file, and the file of a method has tens of
thousands. That takes half of the time for loading a method without weights.
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch._export.serde import schema, serialize

from etbuild.patching import replaced


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, globalns=vars(schema))


def _get_type_hints(cls: type, globalns: dict[str, Any]) -> dict[str, Any]:
    del globalns  # these are always the names of `schema`
    return _hints(cls)


@contextlib.contextmanager
def read_hints_once() -> Iterator[None]:
    """Returns a context manager in which `torch.export.load` remembers the types of each class."""
    stand_in = SimpleNamespace(**{**vars(typing), "get_type_hints": _get_type_hints})
    with replaced(serialize, "typing", stand_in):
        yield
