"""Bazel's persistent worker: a process that has imported everything, and forks for each request.

A fork starts with clean memory and returns all of it at its end. It may crash, and it can be killed when its request is
cancelled. All processes that it started end with it, also those that have left its process group. The worker itself
runs no user code and starts no thread. Bazel writes requests to its standard input and reads responses from its
standard output, so nothing else may write there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from etbuild.errors import BuildError, Leaving
from etbuild.files.scratch import Scratch, remove_left
from etbuild.processes import sandbox
from etbuild.processes.build_status import GRACE_SECONDS, Slate, how_it_ended, work
from etbuild.processes.ending import STOPPING, Interrupts, blocked
from etplugins.worker.forks import end_of
from etplugins.worker.protocol import (
    Messages,
    ProtocolError,
    WorkRequest,
    WorkResponse,
    decode_request,
    encode_response,
)
from etplugins.worker.warm_up import warm

_OUTPUT_BYTES = 1 << 20  # this many bytes from the end of a request's output are kept; Bazel holds them in memory

Run = Callable[[list[str]], int]


class _Stopped(Leaving):
    """The worker was told to end, or Bazel no longer reads its responses."""


@dataclass
class _Job:
    """A request that is being worked on.

    Attributes:
        request_id: The id of the request.
        pid: The number of the fork's process, which leads its own process group.
        output: The descriptor of the file that collects what the fork prints.
        slate: The status that the fork writes.
        view: The directory of links to the inputs, in which the fork runs. None if Bazel has made a directory or listed
            no inputs.
        kill_at: The time at which the fork is killed, by the monotonic clock. None if the request was not cancelled.
    """

    request_id: int
    pid: int
    output: int
    slate: Slate
    view: Scratch | None
    kill_at: float | None = None


def serve(run: Run) -> int:
    """Answers requests until there are no more.

    Args:
        run: Takes the arguments of a command, runs it, and returns its exit code.

    Returns:
        The exit code: 0 at the end of the requests, 1 if they are damaged, 128 or more if a signal stopped the worker.
    """
    requests, responses = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    woken, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler, the signal would not wake the worker
    Interrupts(_Stopped).install()
    sandbox.adopt_orphans()
    return _Worker(run, requests, responses, (woken, wakeup)).serve()


class _Worker:
    """Handles requests, ends of forks and deadlines in one loop and one thread."""

    def __init__(self, run: Run, requests: int, responses: int, wakeup: tuple[int, int]) -> None:
        self.run = run
        self.requests = requests
        self.responses = responses
        self.wakeup = wakeup
        self.messages = Messages()
        self.jobs: dict[int, _Job] = {}
        self.more = True
        self.poll = select.poll()
        self.poll.register(requests, select.POLLIN)
        self.poll.register(wakeup[0], select.POLLIN)
        self.poll.register(responses, 0)  # 0: reports only that the reader has closed its end

    def serve(self) -> int:
        """Works until the requests end. Returns the exit code."""
        try:
            while self.more or self.jobs:
                self._turn()
            return 0
        except ProtocolError as error:
            print(f"etbuild: cannot read the requests of Bazel: {error}", file=sys.stderr)
            return 1
        except BrokenPipeError:
            return 128 + signal.SIGPIPE
        except _Stopped as stopped:
            return 128 + int(stopped.args[0])
        finally:
            self._kill_all()

    def _turn(self) -> None:
        """Waits for an event, and handles it."""
        deadlines = [job.kill_at for job in self.jobs.values() if job.kill_at is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for descriptor, _ in self.poll.poll(None if timeout is None else timeout * 1000 + 1):
            if descriptor == self.requests:
                self._read()
            elif descriptor == self.responses:
                raise _Stopped(signal.SIGPIPE)
            else:
                os.read(descriptor, 4096)
        for job in list(self.jobs.values()):
            if job.kill_at is not None and time.monotonic() >= job.kill_at:
                _signal_group(job, signal.SIGKILL)
            if _ended(job):
                self._finish(job)

    def _read(self) -> None:
        data = os.read(self.requests, 1 << 16)
        if not data:
            self.poll.unregister(self.requests)
            self.more = False
            if self.messages.rest:
                raise ProtocolError("they end inside a message")
        for message in self.messages.feed(data):
            request = decode_request(message)
            if request.cancel:
                self._cancel(request)
            elif request.request_id in self.jobs:
                raise ProtocolError(f"a second request {request.request_id} before the first was answered")
            else:
                self._start(request)

    def _cancel(self, request: WorkRequest) -> None:
        """Asks the fork of a request to end. Does nothing if the request was answered already."""
        job = self.jobs.get(request.request_id)
        if job is not None and job.kill_at is None:
            job.kill_at = time.monotonic() + GRACE_SECONDS
            _signal_group(job, signal.SIGTERM)

    def _start(self, request: WorkRequest) -> None:
        try:
            warm(_verb(request))
        except Exception:  # noqa: BLE001 - fails in the fork as well, whose output Bazel shows
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        view = None
        try:
            view = sandbox.view(request.inputs) if request.inputs and not request.sandbox_dir else None
            self._fork(request, view)
        except (OSError, BuildError) as error:
            if view is not None:
                view.remove()
            self._respond(WorkResponse(1, f"etbuild: cannot start a process: {error}\n", request.request_id))

    def _fork(self, request: WorkRequest, view: Scratch | None) -> None:
        parent = os.getpid()
        with contextlib.ExitStack() as unused:
            output = os.memfd_create("output")
            unused.callback(os.close, output)
            slate = Slate.new()
            unused.callback(slate.close)
            with blocked(*STOPPING):  # a signal between the fork and its entry in `jobs` would lose the fork
                pid = os.fork()
                if pid == 0:
                    self._work(request, view, parent, output, slate)
                unused.pop_all()
                with contextlib.suppress(OSError):  # both processes do this, and the second call may fail
                    os.setpgid(pid, pid)
                self.jobs[request.request_id] = _Job(request.request_id, pid, output, slate, view)

    def _work(self, request: WorkRequest, view: Scratch | None, parent: int, output: int, slate: Slate) -> NoReturn:
        """Runs the request in the fork."""

        def run() -> int:
            self._leave(parent, output)
            os.chdir(view.path / sandbox.MAIN if view is not None else request.sandbox_dir or ".")
            return self.run(list(request.arguments))

        work(slate, run, end_of(parent))

    def _leave(self, parent: int, output: int) -> None:
        """Separates a fork from the worker: closes its descriptors, resets signals, and ends when the worker ends."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sandbox.leave_network()
        sandbox.end_with(parent)
        sandbox.adopt_orphans()  # so the worker adopts orphans only of forks that have ended
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        os.dup2(output, 1)
        os.dup2(output, 2)
        of_jobs = [each for job in self.jobs.values() for each in (job.output, job.slate.descriptor)]
        for descriptor in (self.requests, self.responses, *self.wakeup, *of_jobs):
            os.close(descriptor)

    def _finish(self, job: _Job) -> None:
        """Answers the request of a fork that has ended."""
        del self.jobs[job.request_id]
        status = _end(job, {other.pid for other in self.jobs.values()})
        output = _printed(job.output)
        code, stage = job.slate.code(job.pid), job.slate.stage()
        job.slate.close()
        if job.kill_at is not None:
            self._respond(WorkResponse(request_id=job.request_id, was_cancelled=True))
        elif code is None:
            why = how_it_ended("the build", os.waitstatus_to_exitcode(status), stage)
            self._respond(WorkResponse(1, f"{output}error: {why}\n", job.request_id))
        else:
            self._respond(WorkResponse(code, output, job.request_id))

    def _respond(self, response: WorkResponse) -> None:
        data = encode_response(response)
        while data:
            data = data[os.write(self.responses, data) :]

    def _kill_all(self) -> None:
        """Ends all forks."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)  # the worker is already ending
        for job in self.jobs.values():
            _signal_group(job, signal.SIGTERM)
        kill_at = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < kill_at and not all(_ended(job) for job in self.jobs.values()):
            time.sleep(0.01)
        while self.jobs:
            _, job = self.jobs.popitem()
            _end(job, {other.pid for other in self.jobs.values()})


def _verb(request: WorkRequest) -> str:
    """The command that a request runs; empty if it is unknown."""
    first = request.arguments[0] if request.arguments else ""
    if first.startswith("@"):
        try:
            return Path(request.sandbox_dir, first[1:]).read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError):
            return ""
    return first


def _ended(job: _Job) -> bool:
    """Whether a fork has ended. Leaves it as a zombie."""
    return os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(job: _Job, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, number)


def _end(job: _Job, others: set[int]) -> int:
    """Ends a fork and all processes that it has left, but not the forks of other jobs. Returns the fork's status."""
    _signal_group(job, signal.SIGKILL)  # the zombie still reserves the group's number
    _, status = os.waitpid(job.pid, 0)
    sandbox.end_orphans(others, seconds=0)  # processes that had left the group
    remove_left(job.slate.left())
    if job.view is not None:
        job.view.remove()
    return status


def _printed(descriptor: int) -> str:
    """Returns the end of a file's content. Closes the file."""
    with open(descriptor, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _OUTPUT_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text if size <= _OUTPUT_BYTES else f"[{size - _OUTPUT_BYTES} bytes left out]\n{text}"
