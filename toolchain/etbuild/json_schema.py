"""The package's JSON Schemas, and messages for users about data that breaks them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from etbuild import plugins
from etbuild.errors import DocumentPath, Problem, counted, did_you_mean, is_near, unknown
from etbuild.patching import imported_later

with imported_later("urllib.request", "urlopen"):  # jsonschema fetches schemas with it, and ours are files
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, ValidationError
    from jsonschema.validators import extend

DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16"}
"""Other names of dtypes in PyTorch."""
_DIRECTORY = Path(__file__).parent / "schemas"
_PLACES = 2  # sections that a hint names
_QUOTED = 300  # this many characters of a message of the library are shown
_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def file(name: str) -> Path:
    """The path of `schemas/NAME.schema.json`."""
    return _DIRECTORY / f"{name}.schema.json"


@cache
def validator(name: str | Path) -> Draft202012Validator:
    """The validator of a schema.

    Args:
        name: `NAME` for `schemas/NAME.schema.json`, `NAME#PART` for one of the `$defs` of that file, or the path of
            another schema file.
    """
    of, _, part = ("", "", "") if isinstance(name, Path) else name.partition("#")
    path = name if isinstance(name, Path) else file(of)
    content = json.loads(path.read_text("utf-8"))
    return _Validator({**content["$defs"][part], "$defs": content["$defs"]} if part else content)


def identifier(name: str) -> str | None:
    """The value that files of a schema have under the key `schema`; None if the schema requires none."""
    schema = validator(name).schema.get("properties", {}).get("schema")
    return schema["enum"][0] if schema else None


def check(path: Path) -> None:
    """Checks that a file contains a JSON Schema.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a JSON Schema.
    """
    try:
        _Validator.check_schema(validator(path).schema)
    except SchemaError as error:
        raise ValueError(f"{path}: {error.message}") from None


# JSON counts 1.0 as an integer; Python's and PyTorch's calls do not.
# `$` in a JSON pattern matches only the end; in Python it also matches before a final newline.
def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    del validator, schema
    if isinstance(instance, str) and not re.search(re.sub(r"\$\Z", r"\\Z", pattern), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _enum(validator: Any, wanted: list[Any], instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, str) or instance not in _provided(schema):
        yield from Draft202012Validator.VALIDATORS["enum"](validator, wanted, instance, schema)


def _provided(schema: Any) -> Collection[str]:
    """The values that plug-ins add to those of an `enum`: what they provide in the group that its schema names."""
    return plugins.group(schema["group"]) if "group" in schema else ()


# If entries cannot be sorted, the library compares each one with each other one.
def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    del validator, schema
    if wanted and isinstance(instance, list) and len({canonical(entry) for entry in instance}) < len(instance):
        yield ValidationError("an entry is in the list twice")


def canonical(value: Any) -> str:
    """The value as text. Equal values give equal texts."""
    return json.dumps(value, sort_keys=True)


_Validator = extend(
    Draft202012Validator,
    {"enum": _enum, "pattern": _pattern, "uniqueItems": _unique_items},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda checker, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


def problems(name: str | Path, data: Any, path: DocumentPath = (), most: int | None = None) -> list[Problem]:
    """The problems of `data` that break a schema, each with its path.

    Args:
        name: The schema, as `validator` takes it.
        data: The data.
        path: The place of the data in its document. The paths of the problems begin with it.
        most: The number of problems after which the search stops. Data from other people may have a million.
    """
    explain = _Explainer(validator(name).schema, path)
    distinct: dict[Problem, None] = {}
    for error in validator(name).iter_errors(data):
        distinct.update(dict.fromkeys(explain.error(error)))
        if most is not None and len(distinct) >= most:
            break
    return list(distinct)


class _Explainer:
    """Writes messages for errors of one schema. The data is at `base` in the manifest."""

    def __init__(self, root: Any, base: DocumentPath) -> None:
        self.root = root
        self.base = base

    def error(self, error: ValidationError) -> Iterator[Problem]:
        """The problems that one error of the library describes."""
        path = (*self.base, *error.absolute_path)
        keyword, wanted, data, schema = error.validator, error.validator_value, error.instance, error.schema
        example = self.example(schema)
        hint = f"for example {example}" if example else None
        match keyword:
            case "anyOf":
                yield from self.any_of(error)
            case "additionalProperties" if wanted is False:
                known = schema.get("properties", {})
                for key, hint in unknown(data, known):
                    if not (known and is_near(key, known)):  # a similar key of this section is the better hint
                        hint = self.place_of(key) or (hint if known else "no keys are allowed here")
                    yield Problem(f"unknown key `{key}`", (*path, key), hint, at_key=True)
            case "required":
                for key in wanted:
                    if key not in data:
                        sample = self.example(schema.get("properties", {}).get(key, {}))
                        yield Problem(f"the key `{key}` is missing", path, sample and f"add `{key}: {sample}`")
            case "enum":
                alias = DTYPES.get(str(data))
                wanted = [*wanted, *(each for each in _provided(schema) if each not in wanted)]
                near = f"PyTorch's `{data}` is `{alias}`" if alias in wanted else None
                hint = near or did_you_mean(str(data), map(str, wanted))
                yield Problem(f"{show(data)} is not one of the known values", path, hint)
            case "type":
                message = f"expected {_type_names(wanted)}, got {show(data)}"
                yield Problem(message, path, hint)
            case "maxLength" if "propertyNames" in error.absolute_schema_path:
                yield Problem(f"{show(data)} is longer than {wanted} characters", (*path, data), at_key=True)
            case "pattern" if "propertyNames" in error.absolute_schema_path:
                message = f"{show(data)} does not fit: {_first_sentence(schema)}"
                yield Problem(message, (*path, data), hint, at_key=True)
            case "pattern":
                yield Problem(f"{show(data)} does not fit: {_first_sentence(schema)}", path, hint)
            case "oneOf" if all("required" in branch for branch in wanted):
                yield from _one_of(data, [branch["required"][0] for branch in wanted], path)
            case "minItems" | "maxItems" if schema.get("minItems") == schema.get("maxItems"):
                yield Problem(f"expected {counted(wanted, 'entry')}, got {len(data)}", path, hint)
            case "minItems" | "minProperties" | "minLength":
                yield Problem("must not be empty", path, hint)
            case "maxItems" | "maxProperties":
                yield Problem(f"expected at most {counted(wanted, 'entry')}, got {len(data)}", path, hint)
            case "maxLength":
                yield Problem(f"{show(data)} is longer than {wanted} characters", path)
            case "minimum" | "maximum":
                word = "at least" if keyword == "minimum" else "at most"
                yield Problem(f"must be {word} {wanted}, got {show(data)}", path)
            case "uniqueItems":
                yield Problem("an entry is in the list twice", path, "remove one of them")
            case _:
                yield Problem(error.message[:_QUOTED], path, hint)  # cut: the library quotes all of the data

    def place_of(self, key: str) -> str | None:
        """A hint for a key in the wrong section. None if no section has it, or too many have it."""
        if key in self.root.get("properties", {}):
            return f"`{key}` belongs at the top level"
        places = [name for name, keys in self._sections if key in keys]
        return f"`{key}` belongs under {' or '.join(places)}" if 0 < len(places) <= _PLACES else None

    @cached_property
    def _sections(self) -> list[tuple[str, Collection[str]]]:
        """The sections of the document with their keys."""
        sections = []
        for name, schema in self.root.get("properties", {}).items():
            entries = schema.get("additionalProperties") or {}
            sections.append((f"`{name}`", schema.get("properties", {})))
            sections.append((f"`{name}.NAME`", self._resolved(entries).get("properties", {})))
        return sections

    def _resolved(self, schema: Any) -> Any:
        return self.root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def any_of(self, error: ValidationError) -> Iterator[Problem]:
        """The errors of the alternative that fits the data's type; a list of the alternatives if not exactly one
        fits."""
        branches: dict[int, list[ValidationError]] = {}
        for sub_error in error.context or ():
            branches.setdefault(sub_error.schema_path[0], []).append(sub_error)
        fitting = [
            errors
            for errors in branches.values()
            if not any(e.validator in ("type", "enum") and len(e.path) == 0 for e in errors)
        ]
        if len(fitting) == 1:
            for sub_error in fitting[0]:
                yield from self.error(sub_error)
            return
        known = [str(value) for e in error.context or () if e.validator == "enum" for value in e.validator_value]
        example = self.example(error.schema)
        hints = [
            did_you_mean(str(error.instance), known) if known else None,
            f"for example {example}" if example else None,
        ]
        path = (*self.base, *error.absolute_path)
        hint = next((text for text in hints if text), None)
        yield Problem(f"{show(error.instance)} does not fit: {_first_sentence(error.schema)}", path, hint)

    def example(self, schema: Any) -> str | None:
        """An example of a value that the schema accepts, as YAML on one line."""
        if "$ref" in schema and "examples" not in schema:
            return self.example(self._resolved(schema))
        examples = schema.get("examples") or schema.get("enum")
        return _flow(examples[0]) if examples else None


def _one_of(data: dict[str, Any], keys: list[str], path: DocumentPath) -> Iterator[Problem]:
    """The problem if exactly one of some keys must be given, and none or several are."""
    listed = ", ".join(f"`{key}`" for key in keys)
    given = [key for key in keys if key in data]
    if not given:
        yield Problem(f"one of the keys {listed} is missing", path)
    for key in given[1:]:
        yield Problem(f"`{key}` does not go with `{given[0]}`", (*path, key), f"keep one of {listed}", at_key=True)


def _type_names(wanted: str | list[str]) -> str:
    names = (
        [wanted]
        if isinstance(wanted, str)
        else [name for name in wanted if name != "integer" or "number" not in wanted]
    )
    words = [_TYPE_NAMES[name] for name in names]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _flow(value: Any) -> str:
    """The value as YAML in flow style, as people write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", value) else json.dumps(value)
    return json.dumps(value)


def _first_sentence(schema: Any) -> str:
    description = schema.get("description", "what its schema says")  # another package's schema may have none
    return re.split(r"\. (?=[A-Z])", str(description))[0].rstrip(".")


def show(value: Any) -> str:
    """A value of a document as JSON. A long text is cut."""
    text = "null" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
