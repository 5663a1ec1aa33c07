"""Evaluates the type hints of a class once.

PyTorch reads a graph and XNNPACK writes one by the type hints of dataclasses. Both ask `typing.get_type_hints` for each
object, XNNPACK even for each field, and each time it evaluates all hints of the class as Python code.
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator
from typing import Any

from executorch.exir._serialize import _dataclass

from etbuild.patching import replaced

_evaluate = typing.get_type_hints


@contextlib.contextmanager
def evaluate_hints_once() -> Iterator[None]:
    """Returns a context manager in which `typing.get_type_hints` remembers the hints of classes."""
    remembered: dict[tuple[type, int], tuple[dict[str, Any], Any]] = {}

    def get_type_hints(obj: Any, globalns: Any = None, localns: Any = None, include_extras: bool = False) -> Any:
        if not isinstance(obj, type) or localns is not None or include_extras:
            return _evaluate(obj, globalns, localns, include_extras)
        key = obj, id(globalns)
        if key not in remembered:
            remembered[key] = _evaluate(obj, globalns), globalns  # kept, so that nothing else gets its identity
        return dict(remembered[key][0])

    with replaced(typing, "get_type_hints", get_type_hints), replaced(_dataclass, "get_type_hints", get_type_hints):
        yield
