"""A partitioner from the declared sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def create(options: dict[str, Any], load_callable: Callable[[str], Any]) -> Any:
    """What the factory named in the options returns.

    Raises:
        TypeError: It is not a Partitioner.
    """
    from executorch.exir.backend.partitioner import Partitioner

    partitioner = load_callable(options["factory"])(**options.get("kwargs", {}))
    if not isinstance(partitioner, Partitioner):
        raise TypeError(f"{options['factory']} returned {type(partitioner).__name__}, not a Partitioner")
    return partitioner
