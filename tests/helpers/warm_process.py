"""A warm process with the interface of `Worker`, so that the tests of workers run for it too."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from etkit.warm import client
from tests.conftest import MANIFESTS
from tests.helpers.commands import command
from tests.helpers.worker_client import WAIT_SECONDS, alive, descendants, wait_until


@dataclass
class Response:
    """How a command has ended, with the fields of a worker's response."""

    exit_code: int
    output: str
    request_id: int
    was_cancelled: bool


@dataclass
class Process:
    """A process that is no child of this one."""

    pid: int

    def send_signal(self, number: int) -> None:
        """Sends a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = WAIT_SECONDS) -> None:
        """Waits for its end."""
        wait_until(lambda: not alive(self.pid), seconds)


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    cancelled: bool = False


class WarmProcess:
    """A warm process, and the commands that fork from it.

    Args:
        directory: The directory in which commands run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = Path(tempfile.mkdtemp(prefix="w"))  # short: it is part of the path of a socket
        unset = {"CI", client.OFF}
        self.variables = {name: value for name, value in os.environ.items() if name not in unset}
        self.variables |= {"ETBUILD_SERVER_DIR": str(self.place)}
        self.running: dict[int, _Running] = {}
        scratch = directory / "first"
        assert self.ask("build", MANIFESTS["mlp"], "--no-cache", "-o", scratch).exit_code == 0
        shutil.rmtree(scratch)
        wait_until(lambda: bool(self._sockets()), WAIT_SECONDS)
        self.process = Process(self._ask({})["pid"])

    def send(self, *arguments: object, request_id: int = 0, cancel: bool = False) -> None:
        """Starts a command, or asks one to end."""
        if not cancel:
            output = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the command has ended
            process = subprocess.Popen(
                command(*arguments), cwd=self.directory, env=self.variables, stdout=output, stderr=output
            )
            self.running[request_id] = _Running(process, output)
        elif request_id in self.running:
            self.running[request_id].cancelled = True
            self.running[request_id].process.terminate()

    def receive(self, seconds: float = WAIT_SECONDS) -> Response:
        """Waits for the end of a command."""
        ended: list[int] = []

        def one_ended() -> bool:
            ended[:] = [number for number, one in self.running.items() if one.process.poll() is not None]
            return bool(ended)

        wait_until(one_ended, seconds)
        one = self.running.pop(ended[0])
        one.output.seek(0)
        output = one.output.read().decode()
        one.output.close()
        return Response(one.process.returncode, output, ended[0], one.cancelled)

    def ask(self, *arguments: object, request_id: int = 0) -> Response:
        """Runs a command."""
        self.send(*arguments, request_id=request_id)
        return self.receive()

    def children(self) -> list[int]:
        """The living descendants of the warm process."""
        return descendants(self.process.pid)

    def close(self) -> int:
        """Asks the warm process to end, and waits for it. Returns 0."""
        self._ask({"stop": True})
        self.process.wait()
        return 0

    def end(self) -> None:
        """Ends the warm process in any state, and the commands."""
        for one in self.running.values():
            one.process.kill()
            one.process.wait()
        if alive(self.process.pid):
            self.process.send_signal(signal.SIGKILL)
        shutil.rmtree(self.place)

    def _sockets(self) -> list[Path]:
        return [*self.place.glob("*/*.socket")]

    def _ask(self, message: dict[str, object]) -> dict[str, int]:
        answer = client.ask(self._sockets()[0], message)
        assert answer is not None
        return answer
