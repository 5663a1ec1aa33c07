"""Compares builds of one program in two ways.

With `--no-accelerate`, all methods are lowered with weights, and no reason is known.
"""

from __future__ import annotations

import json
from pathlib import Path


def comparable(name: str, content: bytes) -> bytes:
    """A file of a build without the reasons why methods were lowered with weights. The report and the index have them.

    Args:
        name: The name of the file.
        content: Its content.
    """
    if not name.endswith((".report.json", ".index.json")):
        return content
    document = json.loads(content)
    document.pop("with_weights", None)
    others = [each for each in document.get("artifacts", ()) if each["kind"] != "report"]
    return json.dumps({**document, "artifacts": others}).encode()


def comparable_file(path: Path) -> bytes:
    """The same for a file on the disk."""
    return comparable(path.name, path.read_bytes())
