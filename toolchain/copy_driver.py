"""Copies the driver. The copy for actions has no comments, docstrings and help texts of options, and of the
descriptions in schemas only those that messages quote: the others change nothing that an action does, so an edit to
them runs no action again. Lines of Python keep their numbers, so that tracebacks fit the sources.

Each Python from 3.7 on makes the same files: it reads sources as tokens. Texts with `f` stay, since versions of Python
read them as other tokens.
"""

from __future__ import annotations

import io
import json
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_BEFORE_STATEMENTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def without_texts(source: str) -> str:
    """Removes comments, docstrings and help texts from a Python source. It keeps its number of lines."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    found = [(token, "") for token in tokens if token.type == tokenize.COMMENT]
    found += [
        (token, '""') for token in _texts([each for each in tokens if each.type not in (tokenize.COMMENT, tokenize.NL)])
    ]
    lines = source.splitlines(keepends=True)
    # From the end, so that the places of those before stay right.
    for token, short in sorted(found, key=lambda each: each[0].start, reverse=True):
        (first, start), (last, end) = token.start, token.end
        before = lines[first - 1][:start]
        text = (before if short else before.rstrip()) + short + "\n" * (last - first) + lines[last - 1][end:]
        lines[first - 1 : last] = [text, *[""] * (last - first)]
    return "".join(lines)


def _texts(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """Finds statements that are only a text, and texts after `help=`."""
    in_help = False
    for number, token in enumerate(tokens):
        begins = number == 0 or tokens[number - 1].type in _BEFORE_STATEMENTS
        if token.type == tokenize.STRING and token.string[0] not in "fF":
            if in_help or (begins and tokens[number + 1].type == tokenize.NEWLINE):
                yield token
        elif token.string == "=" and tokens[number - 1].string == "help":
            in_help = True
        elif token.string != "(":
            in_help = False


def without_descriptions(schema: Any) -> Any:
    """Removes descriptions from a JSON Schema, but not beside a `pattern` or an `anyOf`, whose messages quote them."""
    if not isinstance(schema, dict):
        return schema
    quoted = "pattern" in schema or "anyOf" in schema
    kept = {key: value for key, value in schema.items() if quoted or key != "description"}
    for key in ("$defs", "properties", "patternProperties"):
        if key in kept:
            kept[key] = {name: without_descriptions(each) for name, each in kept[key].items()}
    for key in ("additionalProperties", "items"):
        if key in kept:
            kept[key] = without_descriptions(kept[key])
    if "anyOf" in kept:
        kept["anyOf"] = [without_descriptions(each) for each in kept["anyOf"]]
    return kept


def for_actions(path: str, content: bytes) -> bytes:
    """The content of a file of the driver as actions have it."""
    if path.endswith(".py"):
        return without_texts(content.decode()).encode()
    if path.startswith("etbuild/schemas/"):  # schemas of plug-ins stay as they are: keys hold them
        return json.dumps(without_descriptions(json.loads(content.decode())), ensure_ascii=False).encode()
    return content


def main(form: str, directory: str, together: str, *files: str) -> None:
    """Copies files.

    Args:
        form: `whole`, or `without_texts`.
        directory: Where to.
        together: A file for the paths and contents of all.
        files: Pairs: a path in the directory, and a file.
    """
    remaining = iter(files)
    with Path(together).open("wb") as all_of_them:
        for path in remaining:
            content = Path(next(remaining)).read_bytes()
            if form == "without_texts":
                content = for_actions(path, content)
            copy = Path(directory, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            all_of_them.write(path.encode() + b"\n" + content)


if __name__ == "__main__":
    main(*sys.argv[1:])
