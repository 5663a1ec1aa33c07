"""Runs the command `etbuild` in its own process, or in a fork of a worker."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.worker_client import WAIT_SECONDS, Worker


def command(*arguments: object) -> list[str]:
    """Returns the command line that runs `etbuild` with these arguments."""
    return [sys.executable, "-m", "etbuild", *map(str, arguments)]


def etbuild(
    *arguments: object,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    typed: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `etbuild`. The caller checks the exit code.

    Args:
        arguments: The arguments of the command.
        directory: Its current directory. Default: that of the test.
        environment: All its environment variables. Default: those of the test.
        typed: Its standard input. Default: that of the test.
    """
    return subprocess.run(
        command(*arguments),
        input=typed,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )


def worker() -> Worker:
    """The worker of this process, for tests that need a command in another process but do not test its start.

    It has imported PyTorch already, which saves five seconds. Each request runs in its own fork, without state of other
    requests. The worker has the environment of the first test that needs it. Tests must not end it. After one that
    gave no response in time, another one is started.
    """
    if _started().process.poll() is not None:
        _started.cache_clear()
    return _started()


@functools.cache
def _started() -> Worker:
    started = Worker(Path(tempfile.gettempdir()))
    atexit.register(_end, started, os.getpid())
    return started


def _end(started: Worker, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the owner must not end the worker
        started.end()


def build(manifest: Path, out: Path, *options: object, environment: Mapping[str, str] | None = None) -> None:
    """Runs `etbuild build`, which must succeed: in a fork of the worker, or, with an environment, in its own process.

    Args:
        manifest: The manifest to build.
        out: The directory for the artifacts.
        options: Options of `build`. Without `--cache-dir`, nothing is cached.
        environment: All its environment variables. Default: those of the worker.
    """
    cache = () if "--cache-dir" in options else ("--no-cache",)
    arguments = ("build", manifest.absolute(), "-o", out.absolute(), *cache, *options)
    if environment is None:
        answer = worker().ask(*arguments)
        assert answer.exit_code == 0, answer.output
    else:
        done = etbuild(*arguments, environment=environment)
        assert done.returncode == 0, done.stderr
