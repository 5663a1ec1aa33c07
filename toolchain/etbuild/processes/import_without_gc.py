"""Imports large packages without the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000  # they take about 5 MB


@contextmanager
def import_without_gc(package: str) -> Iterator[None]:
    """Keeps the garbage collector from a package's first import, whose million objects are never freed.

    The collector is off during the import. Otherwise it would look at all these objects again and again, for one of
    four seconds. Afterwards it runs after 50,000 new objects, and not after 700 as by default: the graphs of methods
    are large, and stay.
    """
    first = package not in sys.modules and gc.isenabled()
    if not first:
        yield
        return
    gc.collect()  # otherwise garbage would also stay, such as the module of an export
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.set_threshold(_NEW_OBJECTS)
    gc.freeze()
