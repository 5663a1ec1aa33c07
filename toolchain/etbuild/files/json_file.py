"""JSON that others wrote: read with limits, and checked against its schema before anything is taken from it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from etbuild import json_schema
from etbuild.errors import DocumentPath, InputError, Problem
from etbuild.files import regular_files
from etbuild.files.value_limits import MAX_DEPTH, fits_64_bits, has_surrogate

MAX_BYTES = 32 << 20
_DEPTH = 2 * MAX_DEPTH  # a plan has all that a manifest has, some levels deeper
_QUOTED = 100  # so many characters of what it says
_NAMED = 3  # so many of the places that break a schema are named


def read(path: Path, what: str, schema_name: str, hint: str | None = None) -> Any:
    """The content of a JSON file.

    Args:
        path: The file.
        what: It should be, with an article, for errors.
        schema_name: That it has to fit, as `schema.validator` takes it.
        hint: What to do where it does not.

    Raises:
        InputError: It cannot be read, or is something else.
    """
    try:
        data = regular_files.read(path, MAX_BYTES)
    except OSError as error:
        raise InputError([Problem(f"{path}: not {what}: {error.strerror}", hint=hint)]) from None
    return content(data, path, what, schema_name, hint)


def content(data: bytes, path: Path, what: str, schema_name: str, hint: str | None = None) -> Any:
    """As `read`, of a file whose bytes were read already."""
    try:
        parsed = parse(data)
    except ValueError as error:
        raise InputError([Problem(f"{path}: not {what}: {error}", hint=hint)]) from None
    check(parsed, path, what, schema_name, hint=hint)
    return parsed


def check(
    parsed: Any, path: Path, what: str, schema_name: str, below: DocumentPath = (), hint: str | None = None
) -> None:
    """Sees whether data of a file fits its schema.

    Args:
        parsed: The data.
        path: The file.
        what: It should be, with an article.
        schema_name: As `schema.validator` takes it.
        below: Where in the file it stands.
        hint: What to do where it does not fit.

    Raises:
        InputError: It does not. Names the first few places.
    """
    said = parsed.get("schema") if isinstance(parsed, dict) else None
    wanted = json_schema.identifier(schema_name)
    if wanted is not None and said != wanted:
        found = said[:_QUOTED] if isinstance(said, str) else "none"
        again = "make it again with this version of `etbuild`"
        hint = hint or (again if found.partition("/")[0] == wanted.partition("/")[0] else None)
        raise InputError([Problem(f"{path}: not {what}: its schema is {found}, not {wanted}", hint=hint)])
    wrong = json_schema.problems(schema_name, parsed, below, most=_NAMED)
    if wrong:
        problems = [Problem(f"{path}: not {what}: {problem.on_one_line()}", hint=hint) for problem in wrong[:_NAMED]]
        raise InputError(problems)


def parse(data: bytes, constants: Mapping[str, float] = MappingProxyType({})) -> Any:
    """JSON in UTF-8, stricter than Python reads it: keys stand once, numbers are finite and fit into 64 bits, text has
    no half of a surrogate pair, and nothing is nested more than 100 levels deep.

    Args:
        data: The bytes.
        constants: The numbers that `NaN`, `Infinity` and `-Infinity` stand for, where they may be used.

    Raises:
        ValueError: It is something else.
    """

    def constant(text: str) -> float:
        if text not in constants:
            raise ValueError(f"{text} is no number of JSON")
        return constants[text]

    try:
        parsed = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=constant,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_values(parsed)
    return parsed


_TOO_DEEP = f"nested more than {_DEPTH} levels deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {json_schema.show(twice)} stands twice in an object")
    return found


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
    """Looks at the depth and the text of parsed data, level by level."""
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
