"""JSON files from other people: read with limits, and checked against a schema before they are used."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from etbuild import json_schema
from etbuild.errors import DocumentPath, InputError, Problem
from etbuild.files import regular_files
from etbuild.files.value_limits import MAX_DEPTH, fits_64_bits, has_surrogate

MAX_BYTES = 32 << 20
_DEPTH = 2 * MAX_DEPTH  # a plan has the content of the manifest some levels deeper
_QUOTED = 100  # this many characters of the file's `schema` are quoted
_NAMED = 3  # this many places that break the schema are named


@dataclass(frozen=True)
class Format:
    """What a file should be.

    Attributes:
        what: Its name with an article, for errors.
        schema: Its schema, as `json_schema.validator` takes it.
        hint: What to do if the file has another format.
    """

    what: str
    schema: str
    hint: str | None = None


def read(path: Path, wanted: Format) -> Any:
    """Reads and checks a JSON file.

    Args:
        path: The file.
        wanted: What it should be.

    Returns:
        The parsed content.

    Raises:
        InputError: The file cannot be read, is not JSON, or does not fit the schema.
    """
    try:
        data = regular_files.read(path, MAX_BYTES)
    except OSError as error:
        raise InputError.of(f"{path}: not {wanted.what}: {error.strerror}", wanted.hint) from None
    return content(data, path, wanted)


def content(data: bytes, path: Path, wanted: Format) -> Any:
    """Parses and checks the bytes of a file that is already read. Arguments and errors are those of `read`."""
    try:
        parsed = parse(data)
    except ValueError as error:
        raise InputError.of(f"{path}: not {wanted.what}: {error}", wanted.hint) from None
    check(parsed, path, wanted)
    return parsed


def check(parsed: Any, path: Path, wanted: Format, below: DocumentPath = ()) -> None:
    """Checks that data of a file fits its schema.

    Args:
        parsed: The data.
        path: The file.
        wanted: What the file should be. Its schema is the schema of the data.
        below: The place of the data in the file.

    Raises:
        InputError: The data does not fit. The error names the first few places.
    """
    schema = parsed.get("schema") if isinstance(parsed, dict) else None
    identifier = json_schema.identifier(wanted.schema)
    message, hint = f"{path}: not {wanted.what}", wanted.hint
    if identifier is not None and schema != identifier:
        if not isinstance(schema, str):
            raise InputError.of(f"{message}: it has no `schema`, which must be {identifier}", hint)
        again = "create it again with this version of `etbuild`"
        hint = hint or (again if schema.partition("/")[0] == identifier.partition("/")[0] else None)
        raise InputError.of(f"{message}: its schema is {schema[:_QUOTED]}, not {identifier}", hint)
    wrong = json_schema.problems(wanted.schema, parsed, below, most=_NAMED)
    if wrong:
        raise InputError([Problem(f"{message}: {problem.on_one_line()}", hint=hint) for problem in wrong[:_NAMED]])


def parse(data: bytes, constants: Mapping[str, float] = MappingProxyType({})) -> Any:
    """Parses JSON in UTF-8, more strictly than Python.

    Keys are unique, numbers are finite and fit into 64 bits, text contains no half of a surrogate pair, and the data is
    at most 100 levels deep.

    Args:
        data: The bytes.
        constants: The numbers that `NaN`, `Infinity` and `-Infinity` stand for, if they are allowed.

    Raises:
        ValueError: The bytes are not such JSON.
    """

    def constant(text: str) -> float:
        if text not in constants:
            raise ValueError(f"{text} is not a number of JSON")
        return constants[text]

    try:
        parsed = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=unique,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=constant,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_values(parsed)
    return parsed


_TOO_DEEP = f"nested more than {_DEPTH} levels deep"


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its entries, for `object_pairs_hook`. Raises ValueError if a key occurs twice."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {json_schema.show(twice)} occurs twice in an object")
    return entries


def _integer(text: str) -> int:
    if len(text) > 20 or not fits_64_bits(int(text)):
        raise ValueError(f"the number {text[:40]} does not fit into 64 bits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _check_values(parsed: Any) -> None:
    """Checks the depth and the text of parsed data, level by level."""
    level: list[Any] = [parsed]
    for depth in range(_DEPTH + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, (dict, list)):
                if depth == _DEPTH:
                    raise ValueError(_TOO_DEEP)
                below += [*value.keys(), *value.values()] if isinstance(value, dict) else value
            elif isinstance(value, str) and has_surrogate(value):
                raise ValueError("the text holds half of a surrogate pair")
        level = below
