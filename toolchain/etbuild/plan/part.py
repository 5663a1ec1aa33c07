"""The base of plans and their parts: immutable values with typed fields, and their JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Callable[[Any], Any]:
        """Tells type checkers that the class works like a dataclass."""
        del options
        return lambda cls: cls


P = TypeVar("P", bound="Part")
Readers = Mapping[str, Callable[[Any], Any]]


@dataclass_transform(frozen_default=True)
class Part:
    """A plan or a part of one. It is immutable, and equal to another part of its class with equal fields.

    A subclass annotates its fields, and type checkers treat it as a frozen dataclass. It is not a real dataclass,
    because `dataclass` compiles six methods for each class. For the 34 classes of plans this takes 15 ms, each time a
    command reads a plan.

    As JSON, a part is an object with a key for each field, unless its class says otherwise.
    """

    _FIELDS: ClassVar[tuple[str, ...]] = ()
    _READERS: ClassVar[Readers] = {}
    """Functions that make a field's value from its JSON. Other fields hold plain values, and tuples for lists."""
    _LEFT_OUT: ClassVar[Mapping[str, Any]] = {}
    """Fields that JSON leaves out while they have this value, so that manifests that do not use them keep their key."""

    def __init_subclass__(cls) -> None:
        own = [name for name, kind in inspect.get_annotations(cls).items() if not kind.startswith("ClassVar")]
        cls._FIELDS = tuple(dict.fromkeys([*cls._FIELDS, *own]))

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {**dict(zip(self._FIELDS, values, strict=False)), **named}
        if len(given) != len(values) + len(named) or given.keys() != set(self._FIELDS):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._FIELDS)}, each once")
        self.__dict__.update(given)

    if not TYPE_CHECKING:  # with this method, type checkers would allow setting any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(f"{type(self).__name__} is immutable: use `replace`")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in zip(self._FIELDS, self._values(), strict=True)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(self.__dict__[name] for name in self._FIELDS)

    def replace(self, **fields: Any) -> Self:
        """A copy with other values for these fields."""
        return type(self)(**{**self.fields(), **fields})

    def fields(self) -> dict[str, object]:
        """The values of the fields, by name."""
        return dict(zip(self._FIELDS, self._values(), strict=True))

    def as_part(self, kind: type[P], **others: Any) -> P:
        """The part of this class that has the same values, of which this one may have more; `others` replace some."""
        return kind(**{name: self.__dict__[name] for name in kind._FIELDS if name not in others}, **others)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Makes a part from a JSON object.

        Args:
            document: The object. It fits the schema of plans.

        Raises:
            ValueError: It has a key that is no field.
        """
        for key in document:
            if key not in cls._FIELDS:
                raise ValueError(f"`{key}` is not a key of `{cls.__name__}`")
        given = {**cls._LEFT_OUT, **document}
        return cls(**{name: cls._READERS.get(name, plain)(given[name]) for name in cls._FIELDS})

    def to_json(self) -> dict[str, object]:
        """The part as JSON data, the reverse of `from_json`."""
        fields = self.fields().items()
        return {name: _json(value) for name, value in fields if (name, value) not in self._LEFT_OUT.items()}


def _json(value: Any) -> Any:
    if isinstance(value, Part):
        return value.to_json()
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    return [_json(part) for part in value] if isinstance(value, (list, tuple)) else value


def plain(value: Any) -> Any:
    """Reads plain values, and lists of them as tuples."""
    return tuple(value) if isinstance(value, list) else value


def same(value: Any) -> Any:
    """Reads any JSON and leaves it as it is."""
    return value


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A reader that returns None for `null`, and otherwise uses the given reader."""
    return lambda value: None if value is None else read(value)


def each_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A reader for a list or a mapping. The given reader reads its elements."""

    def parts(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: read(part) for key, part in value.items()}
        return tuple(read(part) for part in value)

    return parts
