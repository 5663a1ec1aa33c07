"""Maps the names of tensors in a checkpoint to those of the module, as the rules of the manifest say."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean
from etbuild.plan.parts import WeightsFile


def names_in_module(entry: WeightsFile, names: Iterable[str], place: DocumentPath) -> dict[str, str]:
    """The name in the module of each tensor that is read.

    Args:
        entry: The checkpoint with its rules.
        names: The names of its tensors.
        place: The place of the entry in the manifest.

    Raises:
        InputError: A pattern matches no tensor, or two rules of the same length give a tensor different names.
    """
    found = list(names)
    unmatched: list[tuple[DocumentPath, str]] = [
        (("ignore", index), pattern)
        for index, pattern in enumerate(entry.ignore)
        if not any(fnmatchcase(name, pattern) for name in found)
    ]
    unmatched += [
        (("rename", pattern), pattern)
        for pattern in entry.rename
        if all(stars(name, pattern) is None for name in found)
    ]
    problems = [
        Problem(f"`{pattern}` matches no tensor of `{entry.file}`", (*place, *at), did_you_mean(pattern, found))
        for at, pattern in unmatched
    ]
    if problems:
        raise InputError(problems)
    kept = [name for name in found if not any(fnmatchcase(name, pattern) for pattern in entry.ignore)]
    return {name: _renamed(name, entry, place) for name in kept}


def _renamed(name: str, entry: WeightsFile, place: DocumentPath) -> str:
    """The new name of a tensor, by the longest pattern that matches its name."""
    matching = [(pattern, texts) for pattern in entry.rename if (texts := stars(name, pattern)) is not None]
    longest = max((len(pattern) for pattern, _ in matching), default=0)
    found = {_filled(entry.rename[pattern], texts): pattern for pattern, texts in matching if len(pattern) == longest}
    if len(found) > 1:
        patterns = " and ".join(f"`{pattern}`" for pattern in found.values())
        message = f"{patterns} give `{name}` different names, and neither is longer"
        raise InputError.at((*place, "rename"), message, "make one of them longer: the longest pattern counts")
    return next(iter(found), name)


def stars(name: str, pattern: str) -> list[str] | None:
    """The texts that the `*` of a pattern stand for, each as short as possible; None if the pattern does not match."""
    # A regular expression could take very long: names of tensors are as long as a file likes.
    first, *others = pattern.split("*")
    if not others:
        return [] if name == pattern else None
    if not name.startswith(first):
        return None
    texts, start = [], len(first)
    for literal in others[:-1]:
        at = name.find(literal, start)
        if at < 0:
            return None
        texts.append(name[start:at])
        start = at + len(literal)
    end = len(name) - len(others[-1])
    if end < start or not name.endswith(others[-1]):
        return None
    return [*texts, name[start:end]]


def _filled(pattern: str, texts: list[str]) -> str:
    first, *others = pattern.split("*")
    return first + "".join(text + literal for text, literal in zip(texts, others, strict=True))
