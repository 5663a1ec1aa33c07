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
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from etbuild.errors import BuildError, DocumentPath, EtbuildError, InputError, Leaving
from etbuild.exception_text import hints, readable, summary, whole_error

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


PASSING = (EtbuildError, KeyboardInterrupt, GeneratorExit, Leaving)
"""Exceptions that are not failures of other people's code: our errors, Ctrl-C, and what ends one of our processes."""


@contextmanager
def wrap_errors(convert: Callable[[BaseException], EtbuildError]) -> Iterator[None]:
    """Converts every exception that code inside raises, also `sys.exit` and classes of its own below `BaseException`.

    Args:
        convert: Makes our error from an exception.
    """
    try:
        yield
    except PASSING:
        raise
    except BaseException as error:
        raise convert(readable(error)) from error


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


def foreign_error(error: BaseException) -> EtbuildError | None:
    """Our error for an exception that only foreign code raises: a panic of a library in Rust, or a foreign class that
    is not an `Exception`. None for any other exception."""
    ours = type(error).__module__.partition(".")[0] in ("etbuild", "etkit", "etplugins")
    if ours or isinstance(error, (Exception, *PASSING)):
        return None
    return from_exception(readable(error), BuildError, None, "a library, or code of the model, failed")


_ROOM, _DESCRIPTORS = "is the disk full?", "too many files are open: raise the limit with `ulimit -n`"
_PROCESSES, _MEMORY = "too many processes run: raise the limit with `ulimit -u`", "raise the limit with `ulimit -v`"
_OF_SYSTEM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _DESCRIPTORS),
    **dict.fromkeys((errno.EACCES, errno.EIO, errno.ENOMEM, errno.EPERM, errno.EROFS, errno.ESTALE), None),
    errno.EAGAIN: _PROCESSES,
    errno.ENAMETOOLONG: None,
    errno.EFBIG: "is there a limit of the size of files? `ulimit -f` prints it",
}
"""Error numbers that come from the state of the machine and never from a bug of the driver, each with its hint."""

_WITHOUT_FILE = {errno.EAGAIN: "cannot start a process", errno.ENOMEM: "cannot get memory"}
"""What failed, if the error names no file."""


def system_error(error: BaseException) -> EtbuildError | None:
    """Our error for a problem of the machine: a full disk, a limit, a permission, a missing package.

    Args:
        error: An OSError, an ImportError, or a RuntimeError of a library that quotes the system's message.

    Returns:
        None if the error may be a bug of ours.
    """
    if isinstance(error, OSError) and error.errno in _OF_SYSTEM:
        named = isinstance(error.filename, str | bytes)
        what = os.fsdecode(error.filename) if named else written_file(error)
        what = what or _WITHOUT_FILE.get(error.errno, "cannot use a file")
        return BuildError.of(f"{what}: {error.strerror}", _OF_SYSTEM[error.errno])
    if isinstance(error, ImportError):
        return _import_error(error)
    if isinstance(error, RuntimeError):
        if "can't start new thread" in str(error):
            return BuildError.of("cannot start a thread", _PROCESSES)
        for number, hint in _OF_SYSTEM.items():
            if os.strerror(number) in str(error):
                return BuildError.of(str(error).partition("\n")[0], hint)
    return None


def written_file(error: BaseException) -> str | None:
    """The file that was open for writing where an error was raised. Errors of `write` and `close` name none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, io.IOBase) and set("wxa+") & set(str(getattr(value, "mode", ""))):
                name = getattr(value, "name", None)
                found = name if isinstance(name, str) and not name.startswith("<") else found
        trace = trace.tb_next
    return found


def _import_error(error: ImportError) -> EtbuildError | None:
    """Our error for a package that cannot be imported. None for one of the driver's own modules: that is a bug."""
    name = error.name or ""
    if not name or name.partition(".")[0] in ("etbuild", "etkit", "etplugins"):
        return None
    action = f"cannot import `{name}`"
    if isinstance(error, ModuleNotFoundError):
        hint = "the package is not installed: `pip check` lists everything that etbuild needs and does not find"
        return InputError.of(action, hint)
    too_large = any(words in str(error) for words in ("failed to map segment", "Cannot allocate memory"))
    hint = f"there is too little memory for it: {_MEMORY}" if too_large else "does its version fit? see `pip check`"
    return from_exception(error, BuildError, None, action, hint)


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
