"""Turns exceptions of other people's code into errors of ours.

One function for each kind of code:

    a user's code: factories, passes      `inputs.user_code.wrap_user_error`, which also names the source line
    PyTorch, ExecuTorch and other         `wrap_library_errors`, or `wrap_errors` with a function that makes the error
        libraries
    the operating system                  `wrap_system_errors`; `files.scratch.write_error` for a file that is written

Errors of ours, Ctrl-C and the like pass through all of them unchanged.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from etbuild.errors import BuildError, DocumentPath, EtbuildError
from etbuild.exception_text import hints, summary, whole_error

_Kind = TypeVar("_Kind", bound=EtbuildError)


def from_exception(
    error: BaseException,
    kind: type[_Kind],
    where: DocumentPath | None,
    action: str,
    hint: str | None = None,
    *,
    said: str | None = None,
) -> _Kind:
    """Our error for an exception: "ACTION: what the exception says", with the file that has the whole traceback.

    Args:
        error: The exception.
        kind: The class of the new error.
        where: The path in the manifest; None if the error is not about the manifest.
        action: What failed, such as "cannot read `net.safetensors`".
        hint: What to do.
        said: What the exception says, if the caller has a better text than `exception_text.summary`.
    """
    message = f"{action}: {summary(error) if said is None else said}"
    hint = hints(hint, whole_error(error, message))
    return kind.of(message, hint) if where is None else kind.at(where, message, hint)


@contextmanager
def wrap_errors(convert: Callable[[BaseException], EtbuildError]) -> Iterator[None]:
    """Converts every exception that code inside raises, and every `sys.exit`.

    Args:
        convert: Makes our error from an exception.
    """
    try:
        yield
    except EtbuildError:
        raise
    except (Exception, SystemExit) as error:
        raise convert(error) from error


@contextmanager
def wrap_library_errors(
    kind: type[EtbuildError], where: DocumentPath | None, action: str, hint: str | None = None
) -> Iterator[None]:
    """Converts every exception of a library, whose exceptions often have no common base.

    Args:
        kind: The class of the new error.
        where: The path in the manifest; None if the error is not about the manifest.
        action: What failed, such as "cannot read `net.safetensors`".
        hint: What to do.

    Raises:
        EtbuildError: The code inside raised an exception. The error has the class `kind`.
    """
    with wrap_errors(lambda error: from_exception(error, kind, where, action, hint)):
        yield


_ROOM, _DESCRIPTORS = "is the disk full?", "too many files are open: raise the limit with `ulimit -n`"
_OF_SYSTEM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _DESCRIPTORS),
    **dict.fromkeys((errno.EACCES, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EPERM, errno.EROFS, errno.ESTALE), None),
}
"""Error numbers that come from the state of the machine and never from a bug of the driver, each with its hint."""


def system_error(error: Exception) -> BuildError | None:
    """Our error for a problem of the machine: a full disk, a limit, a permission.

    Args:
        error: An OSError, or a RuntimeError of a library that quotes the system's message.

    Returns:
        None if the error may be a bug of ours.
    """
    if isinstance(error, OSError) and error.errno in _OF_SYSTEM:
        named = isinstance(error.filename, str | bytes)
        what = os.fsdecode(error.filename) if named else "cannot use a file"
        return BuildError.of(f"{what}: {error.strerror}", _OF_SYSTEM[error.errno])
    if isinstance(error, RuntimeError):
        for number, hint in _OF_SYSTEM.items():
            if os.strerror(number) in str(error):
                return BuildError.of(str(error).partition("\n")[0], hint)
    return None


@contextmanager
def wrap_system_errors() -> Iterator[None]:
    """Converts the errors that `system_error` knows, from any library. Other errors pass through unchanged.

    Raises:
        BuildError: The disk is full, a limit is reached, or the like.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        known = system_error(error)
        if known is None:
            raise
        raise known from error
