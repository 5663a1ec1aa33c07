"""Child processes: their results, and the reports of how they ended."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import BuildError, EtbuildError, InputError, Problem
from etbuild.files import locks
from etbuild.processes import forked
from etbuild.surroundings import process_state
from etplugins.tokenizer import limited


def writer(path: Path) -> Callable[[], None]:
    def write() -> None:
        path.write_text(str(os.getpid()))

    return write


def test_each_task_has_a_process_of_its_own(tmp_path: Path) -> None:
    forked.run({name: writer(tmp_path / name) for name in "abc"}, 2)
    assert len({os.getpid(), *((int((tmp_path / name).read_text())) for name in "abc")}) == 4


def test_no_more_run_at_once_than_asked_for(tmp_path: Path) -> None:
    def task(name: str) -> Callable[[], None]:
        def run() -> None:
            (tmp_path / name).touch()
            time.sleep(0.2)
            assert len(list(tmp_path.iterdir())) <= 2
            (tmp_path / name).unlink()

        return run

    forked.run({name: task(name) for name in "abcde"}, 2)


@pytest.mark.parametrize("kind", [BuildError, InputError])
def test_an_error_in_a_task_is_raised_in_the_parent(kind: type[BuildError]) -> None:
    problem = Problem("it is wrong", ("methods", "f", 0), "fix it")

    def task() -> None:
        raise kind([problem])

    with pytest.raises(kind) as raised:
        forked.run({"lowering f": task}, 1)
    assert raised.value.problems == [problem]


def test_a_bug_keeps_its_traceback() -> None:
    def task() -> None:
        raise KeyError("surprise")

    with pytest.raises(forked.ChildFailed, match=r'(?s)in task.*raise KeyError\("surprise"\)'):
        forked.run({"lowering f": task}, 1)


def test_a_panic_of_a_library_is_not_a_bug() -> None:
    """Rust's panics are no subclass of `Exception`. No code of the driver raises such a class."""

    def task() -> None:
        raise type("PanicException", (BaseException,), {})("no entry found for key")

    with pytest.raises(BuildError) as raised:
        forked.run({"lowering f": task}, 1)
    assert str(raised.value) == "a library, or code of the model, failed: no entry found for key"


def test_a_problem_of_the_machine_is_told_without_a_traceback() -> None:
    def task() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(BuildError, match=r"Too many open files\n.*ulimit -n"):
        forked.run({"lowering f": task}, 1)


def test_the_first_error_ends_the_others(tmp_path: Path) -> None:
    def fail() -> None:
        raise BuildError([Problem("it is wrong")])

    def wait() -> None:
        (tmp_path / "process").write_text(str(os.getpid()))
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(BuildError):
        forked.run({"waits": wait, "fails": fail, "never starts": writer(tmp_path / "started")}, 2)
    assert time.monotonic() - start < 30
    assert not (tmp_path / "started").exists()
    process = tmp_path / "process"
    if process.exists() and (pid := process.read_text()):  # it may have been killed before it wrote its number
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_killed_child_is_an_error_that_says_what_may_help() -> None:
    with pytest.raises(BuildError, match=r"(?s)lowering f ended with SIGKILL.*--jobs 1"):
        forked.run({"lowering f": lambda: os.kill(os.getpid(), signal.SIGKILL)}, 1)


def test_a_child_that_just_ends_is_an_error() -> None:
    with pytest.raises(BuildError, match="lowering f ended with exit code 7"):
        forked.run({"lowering f": lambda: os._exit(7)}, 1)


def test_a_child_that_leaves_a_process_behind_is_not_waited_for(tmp_path: Path) -> None:
    def task() -> None:
        behind = os.fork()
        if not behind:
            time.sleep(60)
        (tmp_path / "behind").write_text(str(behind))
        os.kill(os.getpid(), signal.SIGSEGV)

    start = time.monotonic()
    with pytest.raises(BuildError, match="lowering f ended with SIGSEGV"):
        forked.run({"lowering f": task}, 1)
    assert time.monotonic() - start < 30
    os.kill(int((tmp_path / "behind").read_text()), signal.SIGKILL)


def test_a_child_without_memory_says_what_may_help() -> None:
    def task() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(1 << 31)

    with pytest.raises(BuildError, match=r"lowering f ran out of memory\n.* took \d+\.\d GB.*--jobs 1"):
        forked.run({"lowering f": task}, 1)


def test_the_result_of_a_forked_copy_of_a_child_is_ignored() -> None:
    def task() -> int:
        return 1 if os.fork() else 2

    for _ in range(5):
        assert forked.run({"lowering f": task}, 1) == {"lowering f": 1}


class Unpicklable:
    """A result whose pickling raises an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


def test_a_result_that_cannot_be_sent_is_a_bug_with_its_traceback() -> None:
    with pytest.raises(forked.ChildFailed, match=r"(?s)in __reduce__.*TypeError: cannot"):
        forked.run({"lowering f": lambda: Unpicklable(TypeError("cannot"))}, 1)


def test_memory_that_is_missing_for_a_result_is_told() -> None:
    with pytest.raises(BuildError, match="lowering f ran out of memory"):
        forked.run({"lowering f": lambda: Unpicklable(MemoryError())}, 1)


class Late:
    """A result in whose pickling a signal arrives."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), self.number)
        return (int, ())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_work_of_a_child_prints_nothing(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # `nohup` ignores SIGHUP
    try:
        with pytest.raises(BuildError, match=f"lowering f ended with exit code {128 + number}"):
            forked.run({"lowering f": lambda: Late(number)}, 1)
    finally:
        signal.signal(number, before)
    assert capfd.readouterr().err == ""


TWICE = """
import os, signal, threading, time
from etbuild.files import locks
from etbuild.processes import forked
from etplugins.tokenizer import limited
from etbuild.surroundings import process_state
from etbuild.processes.ending import Interrupts

interrupts = Interrupts()
interrupts.install()

def stays():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(1)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)

try:
    forked.run({"lowering f": stays}, 1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_second_interrupt_ends_children_that_do_not_end() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


EARLY = """
import os, signal, sys
from etbuild.errors import BuildError
from etbuild.files import locks
from etbuild.processes import forked
from etplugins.tokenizer import limited
from etbuild.surroundings import process_state

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, interrupt)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
try:
    forked.run({"lowering f": lambda: 1}, 1)
except BuildError as error:
    print(error)
"""


def test_a_signal_right_after_the_fork_does_not_reach_the_handlers_of_the_parent() -> None:
    ended = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=True)
    assert "lowering f ended with" in ended.stdout
    assert ended.stderr == ""


def test_a_child_beside_works_in_steps_and_keeps_its_contexts() -> None:
    def task() -> Generator[int, int, None]:
        with tempfile.TemporaryFile() as file:
            given = yield 1
            while True:
                file.write(b"x" * given)
                given = yield file.tell()

    child = forked.Beside("counting", task)
    found = []
    for given in (2, 3):
        found.append(child.result())
        child.give(given)
    assert [*found, child.result()] == [1, 2, 5]
    child.end()


def test_a_child_beside_that_fails_ends() -> None:
    def task() -> Generator[None, int, None]:
        yield
        raise BuildError.of("wrong")

    child = forked.Beside("failing", task)
    child.result()
    child.give(1)
    with pytest.raises(BuildError, match="wrong"):
        child.result()
    assert not multiprocessing.active_children()


def test_a_child_beside_that_is_killed_is_an_error() -> None:
    def task() -> Generator[None, None, None]:
        yield
        os.kill(os.getpid(), signal.SIGKILL)

    child = forked.Beside("counting", task)
    child.result()
    child.give(None)
    with pytest.raises(BuildError, match="counting"):
        child.result()


def test_a_child_that_outlives_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    def task() -> Generator[None, None, None]:
        while True:
            yield

    with locks.locked(tmp_path / "lock", fcntl.LOCK_EX, locks.LOCK_FILE):
        child = forked.Beside("waiting", task)
        child.result()
    with locks.locked(tmp_path / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB, locks.LOCK_FILE):  # or it raises
        assert multiprocessing.active_children()
        child.end()


def test_the_last_step_of_a_child_beside_is_what_it_returns() -> None:
    """Such a child ends by itself, also if it takes no signals."""

    def task() -> Generator[int, int, int]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        given = yield 1
        return given + 1

    child = forked.Beside("counting", task)
    assert child.result() == 1
    (process,) = multiprocessing.active_children()
    child.give(5)
    assert child.result() == 6
    process.join()
    child.end()
    assert process.exitcode == 0


@pytest.mark.parametrize("beside", [False, True])
def test_a_child_that_cannot_start_says_so(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stream: int, other: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def task() -> Generator[None, None, None]:
        yield

    monkeypatch.setattr(process_state, "stream_to", full)
    run = forked.Beside("starved", task).result if beside else partial(forked.run, {"starved": task}, 1)
    with pytest.raises(EtbuildError, match="Too many open files"):
        run()


class Hostile:
    def works(self, number: int) -> int:
        return number + 1

    def raises(self) -> None:
        raise type("PanicException", (BaseException,), {})("no entry found for key")

    def fills_memory(self) -> None:
        bytearray(4 << 30)

    def aborts(self) -> None:
        os.write(2, b"out of luck\n")
        os.abort()

    def never_ends(self) -> None:
        re.match("(a*)*b", "a" * 60)


@pytest.mark.parametrize(
    ("method", "kind", "message"),
    [
        ("raises", InputError, "net.json: it fails: no entry found for key"),
        ("fills_memory", InputError, "net.json: it fails: it takes more than 2.1 GB of memory"),
        ("aborts", BuildError, "net.json: it fails: its process ended with SIGABRT\n    out of luck"),
        ("never_ends", InputError, "net.json: it fails: it takes more than 0.2 seconds"),
    ],
)
def test_code_of_others_has_limits(
    method: str, kind: type[EtbuildError], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with limited.Limited("net.json: it cannot be made", Hostile) as child:
        assert child.call("net.json: it fails", "works", 1) == 2
        with pytest.raises(kind) as raised:
            child.call("net.json: it fails", method, seconds=0.2 if method == "never_ends" else limited.SECONDS)
    assert str(raised.value) == message
    assert "".join(capfd.readouterr()) == ""


def test_the_time_of_each_call_counts_from_its_start() -> None:
    with limited.Limited("it cannot be made", Hostile) as child:
        assert [child.call("it fails", "works", each, seconds=0.05) for each in range(300)] == [*range(1, 301)]
