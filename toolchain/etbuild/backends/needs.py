"""Defines what backends need in addition to ExecuTorch's wheel, with quick tests for it. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from etbuild.backends.backend import Need
from etbuild.extras import install_hint

SDKS: set[str] = set()
"""The variables that name the SDKs of the backends that are loaded."""


def package(module: str) -> Callable[[], bool]:
    """Returns a test for a top-level module, or for a module inside ExecuTorch's package. It imports nothing."""

    def is_installed() -> bool:
        top, *below = module.split(".")
        spec = importlib.util.find_spec(top)
        if spec is None or not below:
            return spec is not None
        places = [Path(place, *below) for place in spec.submodule_search_locations or ()]
        return any(place.is_dir() or list(place.parent.glob(f"{place.name}.*")) for place in places)

    return is_installed


def extra(name: str, what: str, module: str) -> Need:
    """Returns the need for a package that an extra of this distribution installs."""
    return Need(what, lambda: install_hint(name), package(module))


def sdk(variable: str, what: str, holds: str, install: str) -> Need:
    """Returns the need for a vendor's SDK, in the directory that an environment variable names.

    Args:
        variable: The name of the environment variable.
        what: The name of the SDK.
        holds: A file or directory in the SDK, relative to its directory.
        install: How to get the SDK, for the hint.
    """
    SDKS.add(variable)
    return Need(
        f"{what} (in ${variable})",
        f"{install}; then set {variable} to its directory, which has `{holds}` in it",
        lambda: Path(os.environ.get(variable) or os.devnull, holds).exists(),
    )


def python(version: tuple[int, int]) -> Need:
    """Returns the need for this version of Python or a later one."""
    shown = ".".join(map(str, version))
    return Need(f"Python {shown}", f"run the driver with Python {shown} or later", lambda: sys.version_info >= version)
