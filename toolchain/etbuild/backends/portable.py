"""ExecuTorch's portable operators: nothing is delegated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def create(options: dict[str, Any], load_callable: Callable[[str], Any]) -> None:
    """There is no partitioner: what no backend takes runs on the portable operators."""
    del options, load_callable
