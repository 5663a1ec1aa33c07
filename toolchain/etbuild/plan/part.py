"""The base of plans and their parts: immutable values with typed fields, and their JSON."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin

from etbuild import plugins

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Callable[[Any], Any]:
        """Tells type checkers that the class works like a dataclass."""
        del options
        return lambda cls: cls


P = TypeVar("P", bound="Part")
Reader = Callable[[Any], Any]


class Says:
    """Additions to a type in the schema of manifests: `Annotated[int, Says(minimum=1)]`.

    Args:
        name: The name of its definition in the schema; None to write it where it is used.
        text: Its description. It may end with examples, as for fields.
        written: The type in manifests, or the name of its class, if it is another one; otherwise None.
        one: Whether a list with one entry may be written as the entry.
        plan: The schema of its JSON in a plan; None for the one that follows from the type.
        keywords: Keywords of the schema; `...` for one to leave out, such as `default`. Names that plug-ins provide in
            a `group` are values besides those of the `enum`.
    """

    def __init__(
        self,
        name: str | None = None,
        text: str = "",
        *,
        written: Any = None,
        one: bool = False,
        plan: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        self.name, self.text, self.written, self.one, self.plan = name, text, written, one, plan
        self.keywords = keywords


class PluginKeys:
    """Reads a section that a plug-in describes: `Annotated[Part, PluginKeys("model.huggingface")]`.

    Args:
        place: The place of the section. In the group `manifest_keys`, a plug-in provides a subclass of `Part` for it.
            The field is read, and is in the schemas, as if it had this type.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    @property
    def kind(self) -> type[Part]:
        """The class."""
        found: type[Part] = plugins.load("manifest_keys", self.place)
        return found

    def __call__(self, document: Any) -> Part | None:
        """Reads the section from its JSON; None if it is missing."""
        return None if document is None else self.kind.from_json(document)


PLAN_ONLY = Says()
"""Marks a field that manifests do not have."""
NULLABLE = Says()
"""Marks a type with None that is `null` in manifests. Elsewhere, None means a missing key."""
DRIVER_ONLY = Says()
"""Marks a field that only the driver writes into a manifest, to complete it."""


@dataclass_transform(frozen_default=True)
class Part:
    """A plan or a part of one. It is immutable, and equal to another part of its class with equal fields.

    A subclass annotates its fields, and type checkers treat it as a frozen dataclass. It is not a real dataclass,
    because `dataclass` compiles six methods for each class. For the 34 classes of plans, this takes 15 ms each time
    that a command reads a plan.

    In JSON, a part is an object with a key for each field, unless its class differs. The type of a field decides how
    its JSON is read: lists become tuples, and objects become parts. `Annotated` names a function for other types.

    The classes also describe manifests: `make reference` writes the schemas of manifests and plans from them, and the
    types of a manifest's data (`manifest.sections`). The first paragraph of a docstring describes a section, and
    `Attributes` its keys. A description may end with examples: "For example `1`, `[2, 3]`."

    Args of a subclass:
        section: The name of its type in `manifest.sections`; by default the name of the class.
        definition: The name of its definition in the schema of manifests; None to write it where it is used.
        short: The field that a text in a manifest sets, if manifests may write a text in place of the object.
        also: The type of that text, or of another value in place of the object.
        needs: The keys that a manifest must have; by default the fields without a default.
        is_open: Why a manifest may also have other keys; None if it may not.
        keywords: Keywords of its schema.
    """

    _FIELDS: ClassVar[tuple[str, ...]] = ()
    _DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    _LEFT_OUT: ClassVar[tuple[str, ...]] = ()
    """Fields that JSON leaves out if they have their default, so that manifests without them keep their key."""
    _KEYS: ClassVar[Mapping[str, str]] = {}
    """The keys of JSON that differ from the names of their fields, because Python reserves the key."""
    _EITHER: ClassVar[tuple[str, ...]] = ()
    """Fields that JSON may leave out if it has another one."""
    _PLAN: ClassVar[Mapping[str, Any]] = {}
    """More keywords of its schema in plans. With `type`, they are the whole schema."""
    _SHORT: ClassVar[str | None] = None
    _MANIFEST: ClassVar[Mapping[str, Any]] = {}
    """The arguments of the class itself."""

    def __init_subclass__(cls, kw_only: bool = False, short: str | None = None, **manifest: Any) -> None:
        del kw_only  # for type checkers
        cls._SHORT, cls._MANIFEST = short or cls._SHORT, manifest
        own = [name for name, kind in inspect.get_annotations(cls).items() if not kind.startswith("ClassVar")]
        cls._FIELDS = tuple(dict.fromkeys([*cls._FIELDS, *own]))
        cls._DEFAULTS = {**cls._DEFAULTS, **{name: vars(cls)[name] for name in own if name in vars(cls)}}

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self._FIELDS, values, strict=False))
        self.__dict__.update({**self._DEFAULTS, **given, **named})
        if len(given) < len(values) or given.keys() & named.keys() or self.__dict__.keys() != set(self._FIELDS):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._FIELDS)}, each once")

    if not TYPE_CHECKING:  # type checkers would then allow setting any attribute

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
        """A part of this class with the same values. The original may have more values; `others` replace some."""
        return kind(**{name: self.__dict__[name] for name in kind._FIELDS if name not in others}, **others)

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Makes a part from its JSON. A missing field has its default.

        Args:
            document: An object, unless the class says otherwise. It fits the schema of plans.

        Raises:
            ValueError: It has a key that is no field.
        """
        if cls._SHORT is not None and isinstance(document, str):
            document = {cls._SHORT: document}
        fields, given = cls._readers(), {}
        for key, value in document.items():
            if key not in fields:
                raise ValueError(f"`{key}` is not a key of `{cls.__name__}`")
            name, read = fields[key]
            given[name] = read(value)
        return cls(**given)

    @classmethod
    @functools.cache
    def _readers(cls) -> dict[str, tuple[str, Reader]]:
        kinds = cls.kinds()
        return {cls._KEYS.get(name, name): (name, _reader(kinds[name])) for name in cls._FIELDS}

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """The types of all fields, by name."""
        return {name: kind for base in reversed(cls.__mro__) for name, kind in _kinds(base).items()}

    def to_json(self) -> Any:
        """The part as JSON data, the reverse of `from_json`."""
        fields = self.fields().items()
        left_out = {name for name, value in fields if name in self._LEFT_OUT and value == self._DEFAULTS[name]}
        return {self._KEYS.get(name, name): _json(value) for name, value in fields if name not in left_out}


def _json(value: Any) -> Any:
    if isinstance(value, Part):
        return value.to_json()
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    return [_json(part) for part in value] if isinstance(value, (list, tuple)) else value


@functools.cache
def _kinds(cls: type) -> dict[str, Any]:
    """The types of a class's own fields."""
    return inspect.get_annotations(cls, eval_str=True)


def _reader(kind: Any) -> Reader:
    """The function that makes a value of a type from its JSON. It keeps plain values, and values of several types."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = [each for each in arguments[1:] if not isinstance(each, Says)]
        read = cast("Reader", own[0]) if own else _reader(arguments[0])
        return read if not any(each.one for each in arguments[1:] if isinstance(each, Says)) else _of_one(read)
    if origin in (Union, UnionType):
        kinds = [each for each in arguments if each is not NoneType]
        read = _reader(kinds[0]) if len(kinds) == 1 else _same
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        read = _reader(arguments[0])
        return lambda value: tuple(map(read, value))
    if origin in (dict, Mapping):
        read = _reader(arguments[1])
        return lambda value: {key: read(part) for key, part in value.items()}
    return kind.from_json if isinstance(kind, type) and issubclass(kind, Part) else _same


def _of_one(read: Reader) -> Reader:
    return lambda value: read(value if isinstance(value, (list, tuple)) else [value])


def _same(value: Any) -> Any:
    return value
