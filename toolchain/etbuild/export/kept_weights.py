"""Where weights are kept that were computed from others, such as quantized ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KeptWeights:
    """Where weights are kept that were computed from others.

    Attributes:
        file: For later steps of the same build. It may not exist yet, and is empty if there are no such weights.
        fetch: Takes the files of a key from a cache into a directory. Returns whether it has them.
        store: Stores the file of a directory with a key.
    """

    file: Path
    fetch: Callable[[Mapping[str, object], Path], bool] | None = None
    store: Callable[[Mapping[str, object], Path, str], None] | None = None
