"""Parameters of a manifest: values that the command line or a build rule sets.

A parameter is a value, and never a part of a text.

`{parameter: NAME}` refers to a parameter, in the place of a single value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from etbuild import json_schema
from etbuild.errors import COMPARED, DocumentPath, Problem, did_you_mean, unknown
from etbuild.files.value_limits import fits_64_bits, has_surrogate
from etbuild.manifest.sections import Parameter

KEY = "parameters"
_TYPES: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "int": ("a whole number", int),
    "float": ("a number", (int, float)),
    "bool": ("true or false", bool),
    "string": ("a text", str),
}
"""For each type, its name in messages, and the types that its values have in YAML."""
_BOOLEANS = {"true": True, "false": False}
_NUMBERS = {
    "int": r"[-+]?[0-9]{1,40}",
    "float": r"[-+]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][-+]?[0-9]{1,4})?",
}


def mapping(data: Mapping[str, object], key: str) -> dict[str, object]:
    """The mapping under a key; empty if there is none. The document may break its schema."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def referred(value: Any) -> str | None:
    """The name of the parameter that a value refers to; None if the value is not a reference."""
    name = value.get("parameter") if isinstance(value, dict) and len(value) == 1 else None
    return name if isinstance(name, str) else None


def references(data: Any, path: DocumentPath = ()) -> Iterator[tuple[DocumentPath, str]]:
    """Every reference in a document: its place, and the name of the parameter."""
    name = referred(data)
    if name is not None:
        yield path, name
    elif isinstance(data, (dict, list)):
        for key, part in data.items() if isinstance(data, dict) else enumerate(data):
            yield from references(part, (*path, key))


def check_declared(data: Mapping[str, object]) -> list[Problem]:
    """The problems of the parameters that a manifest declares. The manifest may break its schema."""
    problems = json_schema.problems("model", {KEY: data[KEY]}) if KEY in data else []
    problems = [problem for problem in problems if problem.path]  # problems without a path are about missing keys
    return problems or [problem for name, entry in _declared(data).items() for problem in _check(name, entry)]


def _declared(data: Mapping[str, object]) -> dict[str, Parameter]:
    """The parameters that a manifest declares, which fit their schema."""
    return cast("dict[str, Parameter]", data.get(KEY, {}))


def check_unused(data: Mapping[str, object]) -> Iterator[Problem]:
    """Yields the parameters that neither the manifest nor one of its variants uses."""
    used = {name for _, name in references(data)}
    for name in mapping(data, KEY):
        if name not in used:
            hint = f"write `{{parameter: {name}}}` in place of a value"
            yield Problem(f"nothing uses the parameter `{name}`", (KEY, name), hint, at_key=True)


def _check(name: str, entry: Parameter) -> Iterator[Problem]:
    """Yields the problems of a parameter that fits the schema."""
    wanted, path = entry["type"], (KEY, name)
    listed = [(value, (*path, "values", index)) for index, value in enumerate(entry.get("values", []))]
    wrong = False
    for value, place in [(entry["default"], (*path, "default")), *listed]:
        if not _has_type(value, wanted):
            wrong = True
            yield Problem(f"{json_schema.show(value)} is not {_TYPES[wanted][0]}", place, f"the type is `{wanted}`")
    for key in ("min", "max") if wanted in ("bool", "string") else ():
        if key in entry:
            wrong = True
            yield Problem(f"`{key}` goes with `int` and `float`, not with `{wanted}`", (*path, key), at_key=True)
    if not wrong:
        if entry.get("min", -math.inf) > entry.get("max", math.inf):
            yield Problem(f"min {entry['min']} is more than max {entry['max']}", (*path, "min"))
        for value, place in [*listed, (entry["default"], (*path, "default"))]:
            limit = _beyond(value, {**entry, "values": [value]} if place[2] == "values" else entry)
            if limit is not None:
                yield Problem(limit, place)


def _has_type(value: Any, wanted: str) -> bool:
    return isinstance(value, _TYPES[wanted][1]) and isinstance(value, bool) == (wanted == "bool")


def _beyond(value: Any, entry: Parameter) -> str | None:
    """The problem of a value of the right type, for users; None if the value is allowed."""
    shown = json_schema.show(value)
    if "values" in entry and value not in entry["values"]:
        return f"{shown} is not one of the values {', '.join(map(json_schema.show, entry['values']))}"
    if "min" in entry and value < entry["min"]:
        return f"must be at least {entry['min']}, got {shown}"
    if "max" in entry and value > entry["max"]:
        return f"must be at most {entry['max']}, got {shown}"
    return None


def values(data: Mapping[str, object], settings: Mapping[str, Any], problems: list[Problem]) -> dict[str, object]:
    """The value of each declared parameter.

    Args:
        data: A manifest whose parameters passed `check_declared`.
        settings: For some parameters, a value, or its text from the command line.
        problems: Receives the problems of the settings.
    """
    declared = _declared(data)
    for name, hint in unknown(settings, declared):
        message = f"{as_option(name, settings[name])}: there is no parameter `{name}`"
        problems.append(Problem(message, (KEY,), hint or "the manifest has no `parameters`"))
    found = {}
    for name, entry in declared.items():
        value: Any = entry["default"]
        if name in settings:
            value = _parsed(settings[name], entry["type"])
            wrong = f"expected {_TYPES[entry['type']][0]}" if value is None else _beyond(value, entry)
            if wrong is not None:
                problems.append(Problem(f"{as_option(name, settings[name])}: {wrong}", (KEY, name), at_key=True))
        found[name] = float(value) if entry["type"] == "float" and value is not None else value
    return found


def as_option(name: str, setting: object) -> str:
    """A setting in the form of the command line, for messages."""
    return f"`--set {name}={_text(setting)}`"


def _text(setting: object) -> str:
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _parsed(setting: object, wanted: str) -> Any:
    """The value of a setting, or of its text, in a type; None if it has none. A number may be one of NumPy."""
    if wanted == "string":
        return setting if isinstance(setting, str) and not has_surrogate(setting) else None
    text = _text(setting)
    if wanted == "bool":
        return _BOOLEANS.get(text)
    if not re.fullmatch(_NUMBERS[wanted], text, re.ASCII):
        return None
    number = int(text) if wanted == "int" else float(text)
    fits = fits_64_bits(number) if isinstance(number, int) else math.isfinite(number)
    return number if fits else None


def substituted(data: Any, known: Mapping[str, Any], problems: list[Problem], path: DocumentPath = ()) -> Any:
    """A part of a document with values in place of references.

    Args:
        data: The part.
        known: The value of each parameter.
        problems: Receives the references to parameters that are not declared.
        path: The place of the part.
    """
    name = referred(data)
    if name is not None:
        if name not in known:
            near = did_you_mean(name, known) if len(problems) < COMPARED else None
            hint = near or "declare it: `parameters: {NAME: {type: int, default: 2}}`"
            problems.append(Problem(f"there is no parameter `{name}`", path, hint))
        return known.get(name)
    if isinstance(data, dict):
        return {key: substituted(part, known, problems, (*path, key)) for key, part in data.items()}
    if isinstance(data, list):
        return [substituted(part, known, problems, (*path, index)) for index, part in enumerate(data)]
    return data
