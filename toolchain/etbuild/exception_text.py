"""Exceptions of other people's code: a summary in one line, and a file that holds the whole error."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import traceback
from pathlib import Path

_LIMIT = 600  # characters that a summary takes from a message
_TRACE = re.compile(r"(?:Original exception\s+)?Traceback \(most recent call last\):[ ]*\n(?:[ \t]+.*\n)*")
"""A traceback that some errors of PyTorch quote in their message, without its last line, which has the exception."""
_PANIC = "PanicException"  # of all libraries in Rust; users do not know the name
_KEPT = 50  # error files that are kept


def readable(error: BaseException) -> BaseException:
    """Returns the error. If its `__str__` raises, returns another error of the same class name, which has a text."""
    try:
        str(error)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - it is code of a user
        kind = type(type(error).__name__, (Exception,), {})
        instead: BaseException = kind(f"its `__str__` raised {type(failure).__name__}")
        instead.__cause__ = error.__cause__
        return instead.with_traceback(error.__traceback__)
    return error


def summary(error: BaseException, limit: int = _LIMIT) -> str:
    """The error's type and the first paragraph of its message, on one line.

    If this paragraph ends with a colon, the summary includes the next one. It leaves out the lines of a traceback. For
    a failed import it includes the first cause: packages often say only "could not import".

    Args:
        error: The error.
        limit: The maximum number of characters of the message. A longer message is cut between words.
    """
    said, cause = _summary(error, limit), first_cause(error)
    if isinstance(error, ImportError) and cause is not error and str(cause) not in str(error):
        return f"{said}, because of {_summary(cause, limit)}"
    return said


def _summary(error: BaseException, limit: int) -> str:
    paragraphs = re.split(r"\n\s*\n", _TRACE.sub("", str(error)).strip())
    text = _line(paragraphs[0])
    if text.endswith(":") and len(paragraphs) > 1:
        text = f"{text} {_line(paragraphs[1])}"
    kind = type(error).__name__
    if kind == _PANIC:
        return shortened(text, limit)
    return f"{kind}: {shortened(text, limit)}" if text else kind


def chain(error: BaseException, contexts: bool = True) -> list[BaseException]:
    """The error, its cause, the cause of that, and so on.

    Args:
        error: The error.
        contexts: Whether an exception that was being handled counts as a cause, if no other one is named.
    """
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and all(current is not each for each in found):
        found.append(current)
        current = current.__cause__ or (current.__context__ if contexts else None)
    return found


def first_cause(error: BaseException) -> BaseException:
    """The exception at the end of the chain of `raise ... from ...`."""
    return readable(chain(error, contexts=False)[-1])


def shortened(text: str, limit: int = _LIMIT) -> str:
    """The text, cut between words if it has more than `limit` characters."""
    return text if len(text) <= limit else (text[: limit + 1].rpartition(" ")[0] or text[:limit]) + " ..."


def hints(*parts: str | None) -> str | None:
    """Joins hints, one on each line. Returns None if there are none."""
    return "\n    ".join(filter(None, parts)) or None


def last_line(written: bytes) -> str | None:
    """The last line that a program has written, for a hint. None if it has written nothing."""
    lines = [each for each in map(_line, written.decode("utf-8", "replace").splitlines()) if each]
    return lines[-1] if lines else None


def whole_error(error: BaseException, said: str) -> str | None:
    """Writes the whole error to a file, and returns a hint that names the file.

    The file is in a directory of the user. Its name is a digest of the content, so the same error has the same file.

    Args:
        error: The error.
        said: What the message already says about the error.

    Returns:
        None if the message already says everything, or if no file can be written.
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
    """A directory in the cache: a build system removes its temporary directories before the user reads the message."""
    named = os.environ.get("ETBUILD_CACHE_DIR")
    return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etbuild") / "errors"


def _forget_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.txt"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_KEPT]:
        path.unlink(missing_ok=True)


def _line(paragraph: str) -> str:
    """A paragraph as one line, without characters that move a terminal's cursor."""
    text = " ".join(paragraph.split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
