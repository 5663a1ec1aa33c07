"""Finds the files of samples by a pattern for their names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from etbuild.errors import DocumentPath, InputError
from etbuild.inputs.given import Given


def names(pattern: str, path: DocumentPath, inputs: Given) -> tuple[str, ...]:
    """The names of the declared inputs that match a pattern, sorted.

    Args:
        pattern: The pattern.
        path: The place in the manifest that names it, for errors.
        inputs: The declared inputs. They may have directories with more files.

    Raises:
        InputError: There are none.
    """
    roots: list[Path] = getattr(inputs, "roots", [])
    beside = [file.relative_to(root).as_posix() for root in roots for file in root.glob(pattern) if file.is_file()]
    found = sorted({name for name in (*inputs.data, *beside) if matches(name, pattern)})
    if not found:
        looked = f"looked in: {', '.join(str(root.absolute()) for root in roots)}" if roots else None
        raise InputError.at(path, f"no declared input matches `{pattern}`", looked, attributes=("data",))
    return tuple(found)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern is for this name of a file. `*` and `?` stand for no `/`, and for no dot at the beginning."""
    parts, patterns = name.split("/"), pattern.split("/")
    is_hidden = any(one.startswith(".") > other.startswith(".") for one, other in zip(parts, patterns, strict=False))
    return not is_hidden and len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
