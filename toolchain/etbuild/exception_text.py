"""What others raise, in a line; and whole, in a file that the line names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import traceback
from pathlib import Path

_LIMIT = 600  # characters: what is read of an error that stands in a line
_KEPT = 50  # files


def summary(error: BaseException, limit: int = _LIMIT) -> str:
    """The error's type and the part of its message that says what is wrong, in a line.

    That is its first paragraph; where this one ends with a colon, what it announces too.

    Args:
        error: The error.
        limit: Characters of the message, at most. It is cut between words.
    """
    paragraphs = re.split(r"\n\s*\n", str(error).strip())
    text = _line(paragraphs[0])
    if text.endswith(":") and len(paragraphs) > 1:
        text = f"{text} {_line(paragraphs[1])}"
    return f"{type(error).__name__}: {shortened(text, limit)}" if text else type(error).__name__


def shortened(text: str, limit: int = _LIMIT) -> str:
    """The text, cut between words where it is longer than a number of characters."""
    return text if len(text) <= limit else (text[: limit + 1].rpartition(" ")[0] or text[:limit]) + " ..."


def hints(*parts: str | None) -> str | None:
    """Several hints as one, a line each; None where there are none."""
    return "\n    ".join(filter(None, parts)) or None


def whole_error(error: BaseException, said: str) -> str | None:
    """A hint that names a file with the whole error; None where all is said, or no file can be written.

    The file is in a directory of the user, by the error's content: the same error is in the same file.

    Args:
        error: The error.
        said: What a message says of it.
    """
    if _line(str(error)) in said:
        return None
    text = "".join(traceback.format_exception(error))
    name = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", text).encode("utf-8", "replace")).hexdigest()[:12]
    with contextlib.suppress(OSError, RuntimeError):
        directory = _directory()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.txt"
        path.write_text(text, "utf-8", "backslashreplace")
        _forget_oldest(directory)
        return f"the whole error: {path}"
    return None


def _directory() -> Path:
    """In the cache's: a temporary directory of a build system's is gone when its user reads the message."""
    named = os.environ.get("ETBUILD_CACHE_DIR")
    return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etbuild") / "errors"


def _forget_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.txt"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_KEPT]:
        path.unlink(missing_ok=True)


def _line(paragraph: str) -> str:
    """A paragraph as one line, in which nothing moves a terminal's cursor."""
    text = " ".join(paragraph.split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
