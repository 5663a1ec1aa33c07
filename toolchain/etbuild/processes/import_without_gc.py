"""Imports large packages without the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000  # by themselves they take some 5 MB


@contextmanager
def import_without_gc(package: str) -> Iterator[None]:
    """Keeps a package's first import from the garbage collector: a million objects that are never freed.

    During the import the collector is off. It would look at all of these objects again and again: a second of four.
    From then on it runs after 50,000 new objects, by default after 700: the graphs of methods are large, and stay.
    """
    first = package not in sys.modules and gc.isenabled()
    if not first:
        yield
        return
    gc.collect()  # otherwise garbage would stay too, such as the module of an export
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.set_threshold(_NEW_OBJECTS)
    gc.freeze()
