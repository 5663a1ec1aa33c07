"""Resolves the types of each class only once when exported programs are loaded.

For each object in the file, `torch.export.load` asks what kind of type it has, and calls `typing.get_type_hints`. The
file of a method has tens of thousands. That takes more than half of the time for loading a method without weights.

Here each type has one function that reads its objects, in the way of torch's `_dict_to_dataclass`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

from torch._export.serde import schema, serialize
from torch._export.serde.union import _Union

from etbuild.patching import replacing

_LEAVES = (str, int, bool)
_read = serialize._dict_to_dataclass


@replacing(serialize, "_dict_to_dataclass")
def read_hints_once(cls: Any, data: Any) -> Any:
    """The object of this type that JSON data describes."""
    return _reader(cls)(data)


@functools.cache
def _reader(cls: Any) -> Callable[[Any], Any]:
    cls = serialize._resolve_schema_cls(cls)
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin is typing.Annotated:
        return _reader(cls.__origin__)
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return lambda data: None if data is None else _reader(arguments[0])(data)
    if isinstance(cls, type) and issubclass(cls, _Union):
        return functools.partial(_read_union, cls, typing.get_type_hints(cls, vars(schema)))
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls, vars(schema))
        return functools.partial(
            _read_fields, cls, [(field.name, hints[field.name]) for field in dataclasses.fields(cls)]
        )
    if cls in _LEAVES:
        return lambda data: _read(cls, data) if isinstance(data, (list, dict)) else data
    if origin is list:
        return lambda data: list(map(_reader(arguments[0]), data)) if isinstance(data, list) else _read(cls, data)
    return functools.partial(_read, cls)  # calls this module again for its parts


def _read_union(cls: Any, hints: dict[str, Any], data: Any) -> Any:
    if not isinstance(data, dict) or len(data) != 1:
        return _read(cls, data)  # raises the error
    [(name, value)] = data.items()
    return cls.create(**{name: _reader(hints[name])(value)})


def _read_fields(cls: Any, fields: list[tuple[str, Any]], data: Any) -> Any:
    return cls(**{name: _reader(hint)(data[name]) for name, hint in fields if name in data})
