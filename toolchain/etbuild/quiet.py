"""Keeps what torch and ExecuTorch say to their own developers away from a user's diagnostics."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def library_messages_off(sources: Iterable[str] = ()) -> Iterator[None]:
    """Hides warnings, those of the named sources excepted, and log records below errors.

    Args:
        sources: Import paths of the user's own sources, such as `models/net.py`.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sources:
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            warnings.filterwarnings("default", module=re.escape(module) + r"\Z")
        try:
            yield
        finally:
            logging.disable(disabled)
