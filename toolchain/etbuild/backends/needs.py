"""What backends need besides ExecuTorch's wheel, and how to see quickly whether it is there. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from etbuild.backends.backend import Need


def package(module: str) -> Callable[[], bool]:
    """Whether a top-level module, or a file of ExecuTorch's package below it, could be imported."""
    return lambda: _spec(module)


def _spec(module: str) -> bool:
    """Looks for the files of a module; only its top-level package is located, and nothing is imported."""
    top, *below = module.split(".")
    found = importlib.util.find_spec(top)
    if found is None or not below:
        return found is not None
    places = [Path(place, *below) for place in found.submodule_search_locations or ()]
    return any(place.is_dir() or list(place.parent.glob(f"{place.name}.*")) for place in places)


def extra(name: str, what: str, module: str) -> Need:
    """A package that an extra of this distribution brings."""
    return Need(what, f"install it so: pip install 'etbuild[{name}]'", package(module))


def sdk(variable: str, what: str, holds: str, install: str) -> Need:
    """A vendor's SDK, in the directory that an environment variable names.

    Args:
        variable: The variable.
        what: The SDK's name.
        holds: A file or directory that the SDK has.
        install: Where it comes from.
    """
    return Need(
        f"{what} (in ${variable})",
        f"{install}; then set {variable} to its directory, which has `{holds}` in it",
        lambda: Path(os.environ.get(variable) or os.devnull, holds).exists(),
    )


def python(version: tuple[int, int]) -> Need:
    """A version of Python, or a later one."""
    shown = ".".join(map(str, version))
    return Need(f"Python {shown}", f"run the driver with Python {shown} or later", lambda: sys.version_info >= version)
