"""Replaces one attribute or one module for a while."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of a module or class within this context. Restores or removes it on exit."""
    own = vars(owner)
    original = own.get(name, owner)  # the owner as the value means that the attribute is only inherited
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is owner:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def replacing(owner: Any, name: str) -> Callable[[Any], Callable[[], AbstractContextManager[None]]]:
    """A decorator. Calling its result makes a context in which the function is this attribute of the owner."""
    return lambda function: functools.partial(replaced, owner, name, function)


class _StandIn(ModuleType):
    """Takes the place of a module. An attribute that it does not have imports the module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for these
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def imported_later(module: str, function: str, instead: Callable[..., Any] | None = None) -> Iterator[None]:
    """Within this context, `from module import function` gives another function, unless the module is already imported.

    Args:
        module: The name of the module.
        function: The name of the function.
        instead: The other function. None: one that imports the module when it is called.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*arguments, **named)

    stand_in = _StandIn(module)
    setattr(stand_in, function, instead or call)
    if sys.modules.setdefault(module, stand_in) is not stand_in:
        yield
        return
    try:
        yield
    finally:
        if sys.modules.get(module) is stand_in:
            del sys.modules[module]
