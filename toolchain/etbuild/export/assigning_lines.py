"""Finds the lines of a model's sources that assign to an attribute, for messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from etbuild.inputs.user_code import active_finder, from_here

_SHOWN = 3


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
            tree, text = ast.parse(content), content.decode("utf-8", "replace").splitlines()
        except (SyntaxError, ValueError):  # it is no Python, or was not imported
            continue
        numbers = sorted({number for name, number in _changes(tree) if name in attributes})
        found += [f"{from_here(f'{file}:{number}')}: `{text[number - 1].strip()}`" for number in numbers]
    return f"it is assigned at {', '.join(found)}" if 0 < len(found) <= _SHOWN else None


def _changes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The attributes and names that a source changes outside of `__init__`, each with its line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            continue
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            changed = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            changed = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = [node.func.value]  # `self.window.append(x)`
        for each in changed:
            yield from ((name, each.lineno) for name in _names(each))
        yield from _changes(node)


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
