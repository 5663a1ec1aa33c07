"""Runs commands, and measures their time and memory."""

from __future__ import annotations

import compileall
import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.worker_client import descendants


def seconds(work: Callable[[], object]) -> float:
    """Runs a function and returns its wall seconds."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def command(*arguments: object, **environment: str) -> None:
    """Runs a command, which must succeed."""
    commands([arguments], **environment)


def commands(several: Iterable[Iterable[object]], **environment: str) -> None:
    """Runs commands at the same time. All must succeed."""
    started = []
    for arguments in several:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the command has ended
        called = [str(argument) for argument in arguments]
        environ = {**os.environ, **environment}
        started.append((subprocess.Popen(called, env=environ, stdout=subprocess.DEVNULL, stderr=log), log))
    for process, log in started:
        if process.wait():
            log.seek(0)
            raise SystemExit(log.read().decode())


def compile_driver(checkout: Path) -> None:
    """Compiles the driver's bytecode, as pip does when it installs a wheel. A driver without it starts more slowly."""
    compileall.compile_dir(checkout / "toolchain/etbuild", quiet=1)


@dataclass(frozen=True)
class Usage:
    """What one command took.

    Attributes:
        wall: Seconds.
        cpu: User and system seconds, of its children too.
        peak: The peak memory of it and its descendants, in megabytes. Shared memory counts once.
        output: Its standard output and standard error.
    """

    wall: float
    cpu: float
    peak: float
    output: str


def usage(*arguments: object, but: int | None = None, **environment: str) -> Usage:
    """Runs a command, which must succeed, and measures it.

    Args:
        arguments: The command.
        but: A child of this process whose memory does not count.
        environment: Environment variables in addition to those of this process.

    Raises:
        SystemExit: The command fails.
    """
    called = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as log, weighing(but) as scale:
        start = time.monotonic()
        process = subprocess.Popen(called, env={**os.environ, **environment}, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # or else `Popen` waits for it again
        log.seek(0)
        output = log.read().decode(errors="replace")
    if process.returncode:
        raise SystemExit(f"{output}\n{' '.join(called)} ended with {process.returncode}")
    return Usage(wall, used.ru_utime + used.ru_stime, scale.peak, output)


@dataclass
class Scale:
    """The peak memory of a group of processes, in megabytes. Shared memory counts once."""

    peak: float = 0.0


@contextlib.contextmanager
def weighing(but: int | None = None) -> Iterator[Scale]:
    """Measures the descendants of this process four times a second, except the process `but` and its descendants."""
    scale, ended = Scale(), threading.Event()

    def weigh() -> None:
        while not ended.wait(0.25):
            left_out = set() if but is None else {but, *descendants(but)}
            scale.peak = max(scale.peak, sum(map(megabytes, set(descendants(os.getpid())) - left_out)))

    thread = threading.Thread(target=weigh)
    thread.start()
    try:
        yield scale
    finally:
        ended.set()
        thread.join()


def megabytes(pid: int) -> float:
    """Returns the proportional set size of a process in megabytes. 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0
