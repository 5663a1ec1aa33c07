"""Says which line of transformers an export refuses, and which keys of the configuration that line follows from."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping
from traceback import walk_tb
from types import FrameType
from typing import Any

from etbuild.exception_text import chain, shortened

_LIBRARY = "transformers."
_SHOWN, _MOST_KEYS = 160, 4
_OF_VALUES = ("data-dependent", "DataDependent")
_SCALARS = (bool, int, float, str)


def about(error: BaseException) -> tuple[str | None, ...]:
    """Hints about an error of an export: the line, what it needs, and what it reads of the configuration.

    Args:
        error: The error. If it has passed through no function of transformers, there are no hints.
    """
    frames = next(filter(None, map(_frames, chain(error))), [])
    found = None if not frames else _Statement.at(*frames[-1])
    if found is None:
        return ()
    said = f"{type(error).__name__}: {error}"
    of_values = any(word in said for word in _OF_VALUES)
    why = "the value of a tensor decides there, and an export does not know it" if of_values else None
    keys = dict(_keys(found.names, [frame for frame, _ in frames]))
    shown = ", ".join(f"`{key}: {value}`" for key, value in [*keys.items()][:_MOST_KEYS])
    of_keys = f"it follows from {shown} of the configuration: another value, as `set` of `config`, may not need it"
    return f"the line is `{found.text}`", why, of_keys if keys else None


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The functions of transformers that an error has passed through, the innermost last, each with its line."""
    passed = walk_tb(error.__traceback__)
    return [each for each in passed if str(each[0].f_globals.get("__name__")).startswith(_LIBRARY)]


class _Statement:
    """A statement of a function. `names` has the attributes and variables that decide it: those in it, in the
    conditions around it, and in the assignments that make these."""

    def __init__(self, function: ast.AST, statement: ast.stmt) -> None:
        head = getattr(statement, "test", statement)  # of a condition, and not of its whole block
        self.text = shortened(" ".join(ast.unparse(head).split()), _SHOWN)
        conditions = dict(_conditions(function, ()))
        parts = [head, *conditions.get(statement, ())]
        read = {name for part in parts for name in _names(part)}
        for each in (other for other in conditions if isinstance(other, (ast.Assign, ast.AugAssign, ast.AnnAssign))):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if each is not statement and each.value is not None and read & {ast.unparse(one) for one in targets}:
                parts += [each.value, *conditions[each]]
        self.names = list(dict.fromkeys(name for part in parts for name in _names(part)))

    @classmethod
    def at(cls, frame: FrameType, number: int) -> _Statement | None:
        """The innermost statement of a frame's function at a line; None if its source cannot be read."""
        try:
            tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
        except SyntaxError:
            return None
        around = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and _has(each, number)]
        functions = [each for each in around if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return cls(functions[-1], around[-1]) if functions else None  # `walk` goes from the outside to the inside


def _has(statement: ast.stmt, number: int) -> bool:
    return statement.lineno <= number <= (statement.end_lineno or statement.lineno)


def _conditions(node: ast.AST, above: tuple[ast.expr, ...]) -> Iterator[tuple[ast.AST, tuple[ast.expr, ...]]]:
    """The statements of a function, each with the conditions around it."""
    for child in ast.iter_child_nodes(node):
        own = (*above, node.test) if isinstance(node, ast.If) and child is not node.test else above
        if isinstance(child, ast.stmt):
            yield child, own
        yield from _conditions(child, own)


def _names(node: ast.AST) -> Iterator[str]:
    """The variables and attributes that code reads, such as `x` and `self.x`."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, (ast.Name, ast.Attribute)):
            yield ast.unparse(each)


def _keys(names: list[str], frames: list[FrameType]) -> Iterator[tuple[str, Any]]:
    """The keys of a configuration among attributes of modules and of configurations, with their values."""
    owners = [frame.f_locals.get("self") for frame in reversed(frames)]
    configs = [config for owner in owners if hasattr(config := getattr(owner, "config", None), "to_dict")]
    for name in names:
        of, _, key = name.rpartition(".")
        if of != "self" and not of.endswith("config"):
            continue
        values = (_values(config) for config in configs)
        found = next((value[key] for value in values if type(value.get(key)) in _SCALARS), None)
        if found is not None:
            yield key, found


def _values(config: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.to_dict()
    return found
