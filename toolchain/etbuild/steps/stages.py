"""What the steps have in common: ExecuTorch's stages, and imports that the collector leaves alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("source_transform", "quantize", "export", "to_edge", "lower", "to_executorch")
"""ExecuTorch's stages of an export, in their order, as `--stop-after` calls them."""


@contextmanager
def frozen_if_first(package: str) -> Iterator[None]:
    """Keeps the collector off the objects of a package's first import: a million that live as long as the process."""
    first = package not in sys.modules
    if first:
        gc.collect()  # or garbage would stay as long, such as the module of an export
    yield
    if first:
        gc.freeze()
