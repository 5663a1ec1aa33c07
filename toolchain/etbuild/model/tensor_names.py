"""Maps the names of tensors in a checkpoint to names in the module, by the rules of the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean
from etbuild.plan.parts import WeightsFile


def names_in_module(entry: WeightsFile, names: Iterable[str], path: DocumentPath) -> dict[str, str]:
    """For the tensors to read, the names in the module, by their names in the checkpoint.

    Args:
        entry: The checkpoint with its rules.
        names: The names of the tensors in the checkpoint.
        path: The document path of the entry.

    Raises:
        InputError: A pattern matches no tensor, or two rules of the same length give a tensor different names.
    """
    stored_names = list(names)
    unmatched: list[tuple[DocumentPath, str]] = [
        (("ignore", index), pattern)
        for index, pattern in enumerate(entry.ignore)
        if not any(fnmatchcase(name, pattern) for name in stored_names)
    ]
    unmatched += [
        (("rename", pattern), pattern)
        for pattern in entry.rename
        if all(stars(name, pattern) is None for name in stored_names)
    ]
    problems = [
        Problem(
            f"`{pattern}` matches no tensor of `{entry.file}`", (*path, *rule_path), did_you_mean(pattern, stored_names)
        )
        for rule_path, pattern in unmatched
    ]
    InputError.raise_if(problems)
    names_to_read = [name for name in stored_names if not any(fnmatchcase(name, pattern) for pattern in entry.ignore)]
    return {name: _renamed(name, entry, path) for name in names_to_read}


def _renamed(name: str, entry: WeightsFile, path: DocumentPath) -> str:
    """The new name of a tensor, by the longest pattern that matches its name."""
    matching = [(pattern, texts) for pattern in entry.rename if (texts := stars(name, pattern)) is not None]
    longest = max((len(pattern) for pattern, _ in matching), default=0)
    new_names = {
        _filled(entry.rename[pattern], texts): pattern for pattern, texts in matching if len(pattern) == longest
    }
    if len(new_names) > 1:
        patterns = " and ".join(f"`{pattern}`" for pattern in new_names.values())
        message = f"{patterns} give `{name}` different names, and neither is longer"
        raise InputError.at((*path, "rename"), message, "make one of them longer: the longest pattern counts")
    return next(iter(new_names), name)


def stars(name: str, pattern: str) -> list[str] | None:
    """The texts that each `*` of a pattern matches, as short as possible; None if the pattern does not match."""
    # A regular expression could take very long: a file may have names of any length.
    first, *literals = pattern.split("*")
    if not literals:
        return [] if name == pattern else None
    if not name.startswith(first):
        return None
    texts, start = [], len(first)
    for literal in literals[:-1]:
        position = name.find(literal, start)
        if position < 0:
            return None
        texts.append(name[start:position])
        start = position + len(literal)
    end = len(name) - len(literals[-1])
    if end < start or not name.endswith(literals[-1]):
        return None
    return [*texts, name[start:end]]


def _filled(pattern: str, texts: list[str]) -> str:
    first, *literals = pattern.split("*")
    return first + "".join(text + literal for text, literal in zip(texts, literals, strict=True))
