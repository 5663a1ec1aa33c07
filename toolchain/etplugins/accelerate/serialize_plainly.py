"""Saves and loads exported programs with less work for each of their objects.

The file of a method has tens of thousands of objects, of some sixty classes. For each of them, torch asks again for the
fields of its class. Each object of a union checks that no field of its class has a reserved name, and with each read of
an attribute, whether the union has it.

Here the fields of a class are looked up once, and both checks are left out. The objects are the same, and so is the
JSON text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from torch._export.serde import serialize
from torch._export.serde.union import _Union, _UnionTag

from etbuild.patching import replaced

_SIMPLE = (str, int, bool, type(None))  # as keys: subclasses may have another form
_to_data = serialize._dataclass_to_dict
_create = _Union.create.__func__
_tag = functools.cache(_UnionTag.create)


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _dataclass_to_dict(value: Any) -> Any:
    """The JSON data of an object of torch's schema."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is list:
        return [_dataclass_to_dict(element) for element in value]
    if kind is dict:
        return {key: _dataclass_to_dict(element) for key, element in value.items()}
    if not dataclasses.is_dataclass(kind):
        return _to_data(value)
    attributes = object.__getattribute__(value, "__dict__")
    if issubclass(kind, _Union):
        name = str(attributes["_type"])
        return {name: _dataclass_to_dict(attributes[name])}
    return {name: _dataclass_to_dict(attributes[name]) for name in _names(kind)}


def _created(cls: Any, /, **field: Any) -> Any:
    """An object of a union with the one field that it has."""
    names = _names(cls)
    if len(field) != 1 or not field.keys() <= set(names):
        return _create(cls, **field)  # raises the error
    union = object.__new__(cls)
    (name,) = field
    object.__getattribute__(union, "__dict__").update(dict.fromkeys(names), **field, _type=_tag(name, cls))
    return union


@contextlib.contextmanager
def serialize_plainly() -> Iterator[None]:
    """Returns a context manager in which `torch.export.save` and `torch.export.load` do less for each object."""
    with (
        replaced(serialize, "_dataclass_to_dict", _dataclass_to_dict),
        replaced(_Union, "create", classmethod(_created)),
    ):
        yield
