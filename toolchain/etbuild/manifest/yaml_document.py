"""YAML with positions: a file becomes plain JSON data, and the position of each value is known.

It is stricter than YAML: keys are unique strings, numbers are finite, and values that JSON cannot hold are errors.
Scalars follow the core schema of YAML 1.2, as editors read them. A scalar with another meaning in YAML 1.1 is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from etbuild.errors import DocumentPath, InputError, Position, Problem
from etbuild.files.value_limits import MAX_DEPTH, fits_64_bits, has_surrogate
from etbuild.processes import handover

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000  # each use of an alias counts, so this also stops aliases that expand to gigabytes
_LONGEST_NUMBER = 400  # characters; the largest float has 309 digits


@dataclass
class Document:
    """The data of a file, the positions of its values (`positions`), and the positions of their keys (`keys`)."""

    data: Any
    positions: dict[DocumentPath, Position] = field(default_factory=dict)
    keys: dict[DocumentPath, Position] = field(default_factory=dict)

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """The same problems with their positions: the key's position if the key itself is wrong."""
        problems = [
            replace(each, position=self.keys.get(each.path or ())) if each.at_key else each for each in problems
        ]
        return [each.located(self.positions) for each in problems]


def load(path: Path, name: str | None = None, begins: str | None = None) -> Document:
    """Reads one YAML document.

    Args:
        path: The file.
        name: The file's name in errors; by default `path` as given.
        begins: The beginning of such a file, for the error about an empty one.

    Raises:
        InputError: The file cannot be read, is not UTF-8, or is not the YAML that this module accepts. The error lists
            all problems that were found.
    """
    name = name or str(path)
    loader, node = _compose(_read(path, name), name, begins)
    reader = _Reader(loader, name)
    document = Document(reader.read(node, ()), reader.positions, reader.keys)
    if reader.problems:
        raise InputError(reader.problems)
    return document


def _compose(text: str, name: str, begins: str | None) -> tuple[_Loader, yaml.Node]:
    """The root node of a document, and the loader that makes values from nodes."""
    try:
        loader = _Loader(text, name)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = Position(name, before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise InputError.at(position, message) from None
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise InputError([_syntax_problem(error, name)]) from None
    except (ValueError, OverflowError):  # an escape with too large a number, such as "\U00110000"
        position = Position(name, loader.line + 1, loader.column + 1)
        raise InputError.at(position, "an escape is not a Unicode character") from None
    if node is None:
        raise InputError.at(Position(name, 1, 1), "the file is empty", begins)
    return loader, node


def _read(path: Path, name: str) -> str:
    try:
        raw = handover.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise InputError.of(f"{name}: cannot read the file: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise InputError.at(Position(name, 1, 1), f"the file is larger than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        position = Position(name, before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        raise InputError.at(position, f"byte 0x{raw[error.start]:02X} is not UTF-8", "save the file as UTF-8") from None


def _syntax_problem(error: yaml.MarkedYAMLError, name: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    position = Position(name, mark.line + 1, mark.column + 1) if mark else Position(name, 1, 1)
    message = str(error.problem or error.context or error)
    if "'\\t'" in message:
        return Problem("a tab cannot indent YAML", position=position, hint="indent with spaces")
    if "expected a single document" in str(error.context):
        return Problem(
            "a second document starts here", position=position, hint="a file has one document: remove the `---`"
        )
    hint = f"{error.context} that starts in line {error.context_mark.line + 1}" if error.context_mark else None
    return Problem(f"not valid YAML: {message}", position=position, hint=hint)


def _too_deep(position: Position) -> InputError:
    return InputError.at(position, f"nested more than {MAX_DEPTH} levels deep")


def _too_many(position: Position) -> InputError:
    message = f"the file expands to more than {MAX_VALUES} values"
    hint = "is an alias (`*name`) used inside a value that other aliases repeat?"
    return InputError.at(position, message, hint)


_AMBIGUOUS = "ambiguous"  # the tag of scalars that differ between YAML 1.1 and 1.2
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Reads the core schema of YAML 1.2; PyYAML itself reads YAML 1.1. Also recognizes `<<`, so that it can be refused.
    Stops early if a file is too large or too deep."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file = file
        self.nodes = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node, with its content."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        position = Position(self.file, mark.line + 1, mark.column + 1)
        if self.nodes >= 2 * MAX_VALUES:  # keys are nodes too
            raise _too_many(position)
        if self.depth > MAX_DEPTH:
            raise _too_deep(position)
        self.nodes += 1
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node."""
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        plain = kind is yaml.ScalarNode and implicit[0]
        return _AMBIGUOUS if plain and _is_ambiguous(value, tag) else tag


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern in {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?[.](inf|Inf|INF)|[.](nan|NaN|NAN)",
    "merge": "<<",
}.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), None)


def _is_ambiguous(text: str, tag: str) -> bool:
    old = _tag_of_old(text)
    if tag == f"{_TAG}int":
        return re.match("[-+]?0[0-9]", text) is not None
    return tag == f"{_TAG}str" and old in [_TAG + name for name in ("bool", "int", "float", "timestamp")]


def _tag_of_old(text: str) -> str:
    return str(yaml.resolver.Resolver().resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]


def _old_value(text: str) -> str | None:
    """The value of a plain scalar in YAML 1.1, as JSON text; None if it is text, or if JSON cannot hold it."""
    try:
        value = yaml.SafeLoader("").construct_object(yaml.ScalarNode(_tag_of_old(text), text))
    except ValueError:
        return None
    return json.dumps(value) if isinstance(value, (int, float)) else None


class _Reader:
    """Turns the nodes of a document into data. Collects positions and problems."""

    def __init__(self, loader: _Loader, name: str) -> None:
        self.loader = loader
        self.name = name
        self.positions: dict[DocumentPath, Position] = {}
        self.keys: dict[DocumentPath, Position] = {}
        self.problems: list[Problem] = []
        self.count = 0

    def read(self, node: yaml.Node, path: DocumentPath) -> Any:
        position = self._position(node)
        self.count += 1
        if self.count > MAX_VALUES:
            raise _too_many(position)
        if len(path) > MAX_DEPTH:
            raise _too_deep(position)
        self.positions[path] = position
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            if not self._plain_tag(node, "seq", path):
                return None
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: DocumentPath) -> dict[str, object]:
        if not self._plain_tag(node, "map", path):
            return {}
        data: dict[str, object] = {}
        self._check_brackets(node, path)
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            position = self._position(key_node)
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._problem("`<<` (merge) is not supported", position, path, "write the keys out, or use `defaults`")
            elif key is None or key_node.tag != "tag:yaml.org,2002:str":
                shown = f"`{key}` is not a string" if key is not None else "a key has to be a string"
                self._problem(shown, position, path, f'write "{key}" in quotes' if key else None)
            elif key in data:
                first = self.keys[(*path, key)]
                self._problem(f"the key `{key}` occurs twice", position, path, f"first in line {first.line}")
            else:
                self.keys[(*path, key)] = position
                data[key] = self.read(value_node, (*path, key))
                if not isinstance(value_node, yaml.ScalarNode):
                    self.positions[(*path, key)] = position  # for a mapping or a list, the key is the best place
        return data

    def _check_brackets(self, node: yaml.MappingNode, path: DocumentPath) -> None:
        """Removes numbers that YAML reads as keys without values, and reports them: `{shape: 1, 3}` is no list."""
        kept: list[tuple[yaml.Node, yaml.Node]] = []
        lists: dict[int, list[str]] = {}  # the numbers after a key and its value, by the place of the key
        for key, value in node.value:
            before = [*map(_text, kept[-1])] if kept else [""]
            if node.flow_style and _is_bare_number(key, value) and all(before):
                lists.setdefault(len(kept) - 1, [before[1]]).append(key.value)
            else:
                kept.append((key, value))
        for index, numbers in lists.items():
            key = kept[index][0]
            message = f"a list needs brackets: `{_text(key)}` ends at the first comma"
            self._problem(message, self._position(key), path, f"write `{_text(key)}: [{', '.join(numbers)}]`")
        node.value = kept

    def _scalar(self, node: yaml.Node, path: DocumentPath) -> Any:
        """The value of a scalar. If a manifest cannot hold it, records a problem and returns None."""
        position, tag = self._position(node), self._type_of(node)
        if tag == _AMBIGUOUS:
            self._ambiguous(node.value, position, path)
            return None
        if tag not in _TYPES:
            message = f"`{_short_tag(node)} {node.value[:40]}` is not of a type that a manifest can hold"
            self._problem(message, position, path, f'write "{node.value}" in quotes')
            return None
        if tag != node.tag:
            hint = f"write it without `{_short_tag(node)}`"
            self._problem(f"`{node.value[:40]}` is not {_TYPES[node.tag]}", position, path, hint)
            return None
        if tag != f"{_TAG}str" and len(node.value) > _LONGEST_NUMBER:
            self._problem(f"`{node.value[:40]}...` is too long for a number", position, path)
            return None
        value = self.loader.construct_object(node)
        if isinstance(value, int) and not fits_64_bits(value):
            self._problem(f"`{node.value[:40]}` does not fit into 64 bits", position, path)
        elif isinstance(value, float) and not math.isfinite(value):
            self._problem(f"`{node.value[:40]}` is not a finite number", position, path)
        elif isinstance(value, str) and has_surrogate(value):
            self._problem("the text holds half of a surrogate pair", position, path)
        else:
            return value
        return None

    def _type_of(self, node: yaml.Node) -> str:
        """The tag that a scalar's text would have without an explicit tag, to compare the two. If the scalar is marked
        as text, or its tag is unknown, returns its own tag."""
        if node.tag == f"{_TAG}str" or node.tag not in _TYPES:
            return str(node.tag)
        return self.loader.resolve(yaml.ScalarNode, node.value, (True, False))

    def _ambiguous(self, text: str, position: Position, path: DocumentPath) -> None:
        if len(text) > _LONGEST_NUMBER:
            self._problem(f"`{text[:40]}...` is too long for a number", position, path)
            return
        number = str(int(text)) if re.fullmatch("[-+]?[0-9]+", text) else None
        values = [_old_value(text), number]
        kind = {"timestamp": "a date", "str": "text"}.get(_tag_of_old(text).removeprefix(_TAG), "a number")
        old, new = values[0] or kind, values[1] or "text"
        hint = ", or ".join([*dict.fromkeys(filter(None, values)), f'"{text}" in quotes for text'])
        self._problem(f"`{text}` is {old} in YAML 1.1 and {new} in YAML 1.2", position, path, f"write {hint}")

    def _plain_tag(self, node: yaml.Node, kind: str, path: DocumentPath) -> bool:
        if node.tag == f"tag:yaml.org,2002:{kind}":
            return True
        self._problem(f"`{_short_tag(node)}` is not a type that a manifest can hold", self._position(node), path)
        return False

    def _position(self, node: yaml.Node) -> Position:
        return Position(self.name, node.start_mark.line + 1, node.start_mark.column + 1)

    def _problem(self, message: str, position: Position, path: DocumentPath, hint: str | None = None) -> None:
        self.problems.append(Problem(message, path, hint, position))


_TYPES = {
    f"{_TAG}str": "text",
    f"{_TAG}null": "null",
    f"{_TAG}bool": "true or false",
    f"{_TAG}int": "a whole number",
    f"{_TAG}float": "a number with a point",
}


def _text(node: yaml.Node) -> str:
    return node.value if isinstance(node, yaml.ScalarNode) else ""


def _is_bare_number(key: yaml.Node, value: yaml.Node) -> bool:
    """Whether a key is a number without a value."""
    is_number = key.tag in (f"{_TAG}int", f"{_TAG}float")
    return is_number and isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None


def _short_tag(node: yaml.Node) -> str:
    tag: str = node.tag
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
