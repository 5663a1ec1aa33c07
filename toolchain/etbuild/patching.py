"""One attribute that has another value for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute of a module or class another value inside, and afterwards its own again, or none."""
    own = vars(owner)
    original = own.get(name, owner)  # the owner itself stands for an attribute that it only inherits
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is owner:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
