"""The files and the cache that keep computed weights, such as quantized ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KeptWeights:
    """The files and the cache for weights that were computed from other weights.

    Attributes:
        file: The weights for later steps of the same build. It may not exist yet. It is empty if there are none.
        scratch: Makes a directory in another one, and removes it when the context ends.
        fetch: Copies the files of a key from the cache into a directory. Returns whether the cache has them.
        store: Stores a file with a key: takes the key, the directory of the file, and its name.
    """

    file: Path
    scratch: Callable[[Path], AbstractContextManager[Path]]
    fetch: Callable[[Mapping[str, object], Path], bool] | None = None
    store: Callable[[Mapping[str, object], Path, str], None] | None = None
