"""Resolves the types of each class only once when delegates are written.

ExecuTorch writes each delegate of XNNPACK as JSON for `flatc`, and calls `typing.get_type_hints` for each field of each
object. That takes half of the time for writing a delegate.
"""

from __future__ import annotations

import functools
import typing
from contextlib import AbstractContextManager

from executorch.exir._serialize import _dataclass

from etbuild.patching import replaced


def write_hints_once() -> AbstractContextManager[None]:
    """Returns a context manager in which ExecuTorch remembers the types of each class that it writes as JSON."""
    return replaced(_dataclass, "get_type_hints", functools.cache(typing.get_type_hints))
