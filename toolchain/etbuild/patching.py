"""Replaces one attribute for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of a module or class inside. Restores it afterwards, or removes it if there was none."""
    own = vars(owner)
    original = own.get(name, owner)  # the owner itself marks an attribute that is only inherited
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is owner:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
