"""What the steps have in common: stages, which people see while they wait."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

STAGES = ("source_transform", "quantize", "export", "to_edge", "lower", "to_executorch")
"""ExecuTorch's stages of an export, in their order, as `--stop-after` calls them."""

Stage = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a stage when it starts; the context ends with it."""


def silent(name: str) -> AbstractContextManager[None]:
    """A stage that no one is told of."""
    del name
    return nullcontext()


@contextmanager
def frozen_if_first(package: str) -> Iterator[None]:
    """Keeps the collector off the objects of a package's first import: a million that live as long as the process."""
    first = package not in sys.modules
    if first:
        gc.collect()  # or garbage would stay as long, such as the module of an export
    yield
    if first:
        gc.freeze()
