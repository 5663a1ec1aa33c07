"""A request to a process in fixed surroundings, and its answer: values and errors with their full content.

While the process runs, they are pickled in a directory that only this user may enter.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError, EtbuildError
from etbuild.processes.forked import ChildFailed
from etbuild.publishing import artifacts
from etbuild.surroundings import environment

_REQUEST, _ANSWER = "request", "answer"


def ask(request: object) -> Any:
    """Makes `etbuild answer` work on a request. Its output goes to standard error when it has ended.

    Returns:
        The answer.

    Raises:
        EtbuildError: The work failed with this error, or its process ended early.
        ChildFailed: There is a bug in the driver. The message has its traceback.
    """
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, _REQUEST).write_bytes(pickle.dumps(request))
        done = subprocess.run(
            environment.command(["answer", directory]),
            env=environment.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        try:
            result = pickle.loads(Path(directory, _ANSWER).read_bytes())
        except FileNotFoundError:
            if done.returncode == 1:
                raise ChildFailed(done.stdout) from None
            raise BuildError.of(done.stdout.strip() or f"the build ended with {done.returncode}") from None
    sys.stderr.write(done.stdout)
    if isinstance(result, EtbuildError):
        raise result
    return result


def read(directory: Path) -> Any:
    """The request in a directory that `ask` made."""
    return pickle.loads((directory / _REQUEST).read_bytes())


def answer(directory: Path, result: object) -> None:
    """Answers the request in a directory that `ask` made, with a value or an `EtbuildError`."""
    artifacts.replace(directory / _ANSWER, pickle.dumps(result))
