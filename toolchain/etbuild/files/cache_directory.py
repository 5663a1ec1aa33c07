"""The user's directory for results that later builds can use."""

from __future__ import annotations

import os
from pathlib import Path

from etbuild.errors import InputError


def default_directory() -> Path:
    """Returns `$ETBUILD_CACHE_DIR`, or `etbuild` in the user's cache directory.

    Raises:
        InputError: The home directory cannot be determined.
    """
    named = os.environ.get("ETBUILD_CACHE_DIR")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etbuild"
    except RuntimeError as error:
        raise InputError.of(f"no home directory: {error}", "name one with --cache-dir") from error
