"""The command line. Results go to standard output, diagnostics to standard error.

Exit codes: 0 done; 1 the build failed; 2 bad input or usage; 3 a check of the manifest failed.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from etbuild import __version__
from etbuild.errors import BuildError, Elsewhere, EtbuildError, InputError
from etbuild.processes.build_status import INTERRUPTED

_VERBS = (
    "validate",
    "plan",
    "build",
    "watch",
    "explain",
    "inspect",
    "diff",
    "lock",
    "cache",
    "export",
    "lower",
    "report",
    "verify",
)


def _tell_interrupt() -> None:
    print("etbuild: interrupted", file=sys.stderr)


def main(
    arguments: Sequence[str] | None = None,
    settle: Callable[[float | None], None] = lambda limit: None,
    tell_interrupt: Callable[[], None] = _tell_interrupt,
) -> int:
    """Runs one command.

    Args:
        arguments: Of the command; those of the process by default.
        settle: Called by verbs that build, before they import torch, with the seconds that a build may take: runs the
            command in a process whose surroundings are the same each time, unless this is one.
        tell_interrupt: Called when a signal has ended the command: says so.

    Returns:
        The exit code. Only errors of ours leave as exceptions.
    """
    _mend_streams()
    interrupts = _catch_interrupts()
    try:
        words = _expand(list(sys.argv[1:] if arguments is None else arguments))
        options = _parser(_verbs(words)).parse_args(words)
        options.settle = partial(settle, getattr(options, "timeout", None))
        code = _run(options)
        sys.stdout.flush()
        return code
    except SystemExit:  # of the parser
        raise
    except Elsewhere as done:
        return done.code
    except BaseException as error:
        # Libraries make errors of their own of an interrupt: PyTorch, for one, while it is imported.
        if interrupts or isinstance(error, KeyboardInterrupt):
            tell_interrupt()
            return INTERRUPTED
        return _tell(error)


def _tell(error: BaseException) -> int:
    """Says what went wrong, and returns the exit code. A bug of ours is raised again."""
    known = error
    if isinstance(error, OSError):
        if error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            return _lose_output(error)
        from etbuild.foreign_errors import system_error

        known = system_error(error) or error
    if not isinstance(known, EtbuildError):
        raise error
    from etbuild.cli.terminal import print_error

    print_error(known)
    return known.exit_code


def _lose_output(error: OSError) -> int:
    if error.errno != errno.EPIPE:  # a reader that has gone wants to hear nothing
        print(f"etbuild: cannot write to standard output: {error.strerror}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(options: argparse.Namespace) -> int:
    try:
        return int(options.run(options))
    except SystemExit as end:  # where a model's code is called by others than us
        message = f"something called `sys.exit({end.code!r})` while the command ran"
        raise BuildError.of(message, "does the model call it?") from end
    except MemoryError as error:
        from etbuild.processes.build_status import out_of_memory

        raise BuildError([out_of_memory("the build")]) from error


def _mend_streams() -> None:
    """Closed streams take what is written and lose it; characters that a stream's encoding lacks are escaped."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _catch_interrupts() -> list[int]:
    """The signals that have come: they end the command as Ctrl-C does, so that nothing half-made stays behind."""
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    if _in_main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, interrupt)
    return received


def _in_main_thread() -> bool:
    threading = sys.modules.get("threading")  # without it there is one thread
    return threading is None or threading.current_thread() is threading.main_thread()


def _expand(arguments: list[str]) -> list[str]:
    """Replaces `@FILE`, alone or alone after the verb, by the file's lines: so build systems pass many."""
    if len(arguments) not in (1, 2) or not arguments[-1].startswith("@"):
        return arguments
    path = Path(arguments[-1][1:])
    try:
        return [*arguments[:-1], *path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.of(f"{path}: cannot read the file of arguments: {error}") from None


def _verbs(words: Sequence[str]) -> Sequence[str]:
    """The verbs that a command line can mean: parsers of others take time, and would not be used."""
    first = words[0] if words else ""
    return [first] if first in _VERBS else [] if first == "--version" else _VERBS


def _parser(verbs: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="etbuild",
        description="Turns a manifest and a PyTorch model into an ExecuTorch program.",
        epilog="exit codes: 0 done; 1 the build failed; 2 bad input or usage; 3 a check of the manifest failed. Build "
        "rules also use the verbs export, lower, report and verify.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"etbuild {__version__}")
    registered = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in verbs:
        importlib.import_module(f"etbuild.cli.{verb}").add(registered)
    return parser
