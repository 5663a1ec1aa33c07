"""Finds the lines of a model's sources that assign to an attribute, for messages."""

from __future__ import annotations

import ast
import re
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from collections.abc import (
    Set as AbstractSet,
)

from etbuild.inputs.user_code import active_finder, from_here

_SHOWN = 3
_OF_CONTAINERS = {
    *(set(dir(MutableSequence)) - set(dir(Sequence))),
    *(set(dir(MutableMapping)) - set(dir(Mapping))),
    *(set(dir(MutableSet)) - set(dir(AbstractSet))),
}
"""The methods that change a container."""


def hint(names: Iterable[str]) -> str | None:
    """A hint with the lines that assign to places of objects; None if there are none, or too many to be of use.

    Lines of `__init__` are left out: what is looked for is assigned in a call of a method.

    Args:
        names: The places, such as `tail.state` and `window[0]`.
    """
    attributes = {re.sub(r"\[.*?\]", "", name).rpartition(".")[2] for name in names}
    found = []
    for file, content in active_finder().contents.items():
        try:
            tree, text = ast.parse(content), content.splitlines()  # of bytes: ends lines where Python does
        except (SyntaxError, ValueError, RecursionError):  # it is no Python, or was not imported
            continue
        numbers = sorted({number for name, number in _changes(tree) if name in attributes})
        lines = {number: text[number - 1].decode("utf-8", "replace").strip() for number in numbers}
        found += [f"{from_here(f'{file}:{number}')}: `{line}`" for number, line in lines.items()]
    return f"it is assigned at {', '.join(found)}" if 0 < len(found) <= _SHOWN else None


def _changes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The attributes and names that a source changes outside of `__init__`, each with its line."""
    waiting = [tree]  # no recursion: a source may be nested as deeply as Python can compile it
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            continue
        waiting += ast.iter_child_nodes(node)
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            changed = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
            changed = [node.target]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _changes_its_object(node.func.attr)
        ):
            changed = [node.func.value]  # `self.window.append(x)`
        for each in changed:
            yield from ((name, each.lineno) for name in _names(each))


def _changes_its_object(method: str) -> bool:
    return method in _OF_CONTAINERS or (method.endswith("_") and not method.startswith("_"))


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Subscript, ast.Starred)):
        yield from _names(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _names(each)
