"""Signatures: commands of the user sign a package, and check its signature. These commands handle the keys."""

from __future__ import annotations

import shlex
import subprocess
import sys

from etbuild.errors import BuildError, CheckError, InputError

_ERRORS = 2  # the file descriptor of standard error


def sign(command: str, reference: str) -> None:
    """Signs a package that is in a registry.

    Args:
        command: A command line, which gets the reference as its last argument. No shell reads it.
        reference: `REGISTRY/REPOSITORY@sha256:DIGEST`.

    Raises:
        InputError: The command cannot be started.
        BuildError: It has failed.
    """
    code = _run(command, reference)
    if code:
        raise BuildError.of(f"{reference}: not signed: `{command}` has ended with {code}", "no tag was moved")


def check(command: str, reference: str) -> None:
    """Runs a command that checks the signature of a package. Arguments: as `sign`.

    Raises:
        InputError: The command cannot be started.
        CheckError: It has failed.
    """
    code = _run(command, reference)
    if code:
        raise CheckError.of(f"{reference}: the signature is not accepted: `{command}` has ended with {code}")


def _run(command: str, reference: str) -> int:
    """Runs a command, and returns its exit code. Its output goes to standard error: standard output is `etbuild`'s."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError.of(f"`{command}`: not a command line: {error}") from None
    if not words:
        raise InputError.of("the command of a signature is empty")
    sys.stderr.flush()
    try:
        return subprocess.run([*words, reference], stdout=_ERRORS, check=False).returncode
    except OSError as error:
        raise InputError.of(f"`{command}`: cannot be started: {error.strerror}") from None
