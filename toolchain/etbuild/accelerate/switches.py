"""Turns switches on by their names. Each is imported only when it is used, since it imports torch."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence

from etbuild import accelerate, releases


@contextlib.contextmanager
def entered(names: Sequence[str]) -> Iterator[None]:
    """Turns switches on, in this order. All stay off if the installed versions do not fit."""
    with contextlib.ExitStack() as switches:
        if names and releases.fitting():
            for name in names:
                module = importlib.import_module(f"{accelerate.__name__}.{name}")
                switches.enter_context(getattr(module, name)())
        yield
