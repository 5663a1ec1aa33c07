"""Digests, and the JSON from which they are made."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from etbuild.files import regular_files


def file_digest(path: Path) -> str:
    """sha256 of a regular file, in hex.

    Raises:
        OSError: The file cannot be read, or is not a regular file: a device may never end.
    """
    with regular_files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else _digest_3_10(file)


def _digest_3_10(file: Any) -> str:
    state = hashlib.sha256()
    while block := file.read(1 << 20):
        state.update(block)
    return state.hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no white space and a final newline. Equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def digest(value: Any) -> str:
    """sha256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
