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

_MOST_LINES = 3
_MUTATING_METHODS = {
    *(set(dir(MutableSequence)) - set(dir(Sequence))),
    *(set(dir(MutableMapping)) - set(dir(Mapping))),
    *(set(dir(MutableSet)) - set(dir(AbstractSet))),
}
"""The methods that change a container."""


def hint(names: Iterable[str]) -> str | None:
    """A hint with the lines that assign to attributes; None without such lines, or if there are too many to be of use.

    Lines of `__init__` are left out, because only assignments in calls of methods matter.

    Args:
        names: The attributes and their elements, such as `tail.state` and `window[0]`.
    """
    attributes = {re.sub(r"\[.*?\]", "", name).rpartition(".")[2] for name in names}
    places = []
    for file, content in active_finder().contents.items():
        try:
            tree, text = ast.parse(content), content.splitlines()  # bytes have the same line ends as in Python
        except (SyntaxError, ValueError, RecursionError):  # a declared file that nothing imports may hold anything
            continue
        numbers = sorted({number for name, number in _changes(tree) if name in attributes})
        lines = {number: text[number - 1].decode("utf-8", "replace").strip() for number in numbers}
        places += [f"{from_here(f'{file}:{number}')}: `{line}`" for number, line in lines.items()]
    return f"it is assigned at {', '.join(places)}" if 0 < len(places) <= _MOST_LINES else None


def _changes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of attributes and variables that a source changes outside of `__init__`, each with its line."""
    nodes = [tree]  # a list instead of recursion: sources may be nested more deeply than Python recurses
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            continue
        nodes += ast.iter_child_nodes(node)
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _changes_its_object(node.func.attr)
        ):
            targets = [node.func.value]  # `self.window.append(x)`
        for target in targets:
            yield from ((name, target.lineno) for name in _names(target))


def _changes_its_object(method: str) -> bool:
    return method in _MUTATING_METHODS or (method.endswith("_") and not method.startswith("_"))


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Subscript, ast.Starred)):
        yield from _names(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _names(element)
