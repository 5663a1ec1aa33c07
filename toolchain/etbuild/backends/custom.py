"""A partitioner, or a quantizer, from the declared sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etbuild.backends.backend import Context, Options


def create(options: Options, context: Context) -> Any:
    """What the factory named in the options returns."""
    return context.load(options["factory"])(**options.get("kwargs", {}))


def pairs(options: Options) -> bool:
    """What the manifest says of the backend, of which nothing else is known."""
    return bool(options.get("equal_partitions", False))


def apart(options: Options) -> str:
    """What a factory makes is taken for one backend; what two make need not be."""
    return str(options["factory"])


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """What the factory named in the options returns."""
    return load_callable(options["factory"])(**options.get("kwargs", {}))
