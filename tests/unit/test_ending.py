"""Signals that ask a process to end, wherever they arrive, and the end of a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from etbuild.errors import INTERRUPTED

DROPPED = """
import atexit, ctypes, gc, os, signal, sys, time, weakref
from etbuild.processes.ending import Interrupts, end_process

def stop(*ignored):
    os.kill(os.getpid(), signal.SIGTERM)

class Closes:
    def __del__(self):
        stop()

class Plain:
    pass

interrupts = Interrupts()
interrupts.install()
try:
    {where}
    time.sleep(10)
    print("lost")
except KeyboardInterrupt as error:
    print("raised", *error.args)
"""
NOT_RAISED = {
    "a destructor": "closes = Closes(); del closes",
    "a destructor in a cycle": "closes = Closes(); closes.self = closes; del closes; gc.collect()",
    "a callback of a weak reference": "plain = Plain(); kept = weakref.ref(plain, stop); del plain",
    "a callback of a C library": "ctypes.CFUNCTYPE(None)(stop)()",
    "a destructor, while SIGALRM is blocked": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); closes = Closes(); del closes"
    ),
    "a callback of the garbage collector": "gc.callbacks.append(stop); gc.collect(); gc.callbacks.clear()",
}


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("where", NOT_RAISED.values(), ids=NOT_RAISED)
def test_a_signal_where_python_drops_errors_is_raised_soon_after(where: str) -> None:
    done = ran(DROPPED.format(where=where))
    assert (done.stdout, done.stderr) == (f"raised {int(signal.SIGTERM)}\n", "")


def test_other_errors_where_python_drops_them_are_still_printed() -> None:
    done = ran(DROPPED.format(where="Closes.__del__ = lambda self: 1 / 0; closes = Closes(); del closes; stop()"))
    assert done.stdout == f"raised {int(signal.SIGTERM)}\n"
    assert "ZeroDivisionError" in done.stderr


def test_a_second_signal_ends_a_process_whose_exit_handlers_hang() -> None:
    program = (
        "import atexit, time\nfrom etbuild.processes.ending import Interrupts, end_process\n"
        "interrupts = Interrupts()\ninterrupts.install()\n"
        "atexit.register(lambda: [print('ready', flush=True), time.sleep(60)])\n"
        "interrupts.over = True\nend_process(0)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):  # the second one may come from a parent that ends all of its children
            process.send_signal(signal.SIGTERM)
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_interrupts_a_process_whose_work_is_done(number: signal.Signals) -> None:
    program = (
        "import atexit, os, sys\nfrom etbuild.processes.ending import Interrupts, end_process\n"
        "interrupts = Interrupts()\ninterrupts.install()\n"
        f"atexit.register(lambda: [os.kill(os.getpid(), {int(number)}), print('removed')])\n"
        "interrupts.over = True\nend_process(3)"
    )
    done = ran(program)
    assert (done.returncode, done.stdout, done.stderr) == (3, "removed\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_has_waited_since_the_start_ends_the_command(number: signal.Signals) -> None:
    """What started the process may block signals, as the process that watches a build does."""
    program = (
        "import os, signal, sys\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)  # `nohup` ignores SIGHUP\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\n"
        f"os.kill(os.getpid(), {int(number)})\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'etbuild', 'plan', 'no.yaml'])"
    )
    done = ran(program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "etbuild: interrupted\n")


def test_a_signal_that_is_ignored_stays_so() -> None:
    program = (
        "import os, signal\nfrom etbuild.processes.ending import Interrupts\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nInterrupts().install()\n"
        "os.kill(os.getpid(), signal.SIGHUP)\nprint('on')"
    )
    assert ran(program).stdout == "on\n"


def test_a_forked_process_of_others_ends_by_each_signal() -> None:
    """Also by one that comes while it is made: a pool ends its processes so, and waits for them."""
    done = ran(
        "import os, signal, time\nfrom etbuild.processes.ending import Interrupts\nInterrupts().install()\n"
        "for number in range(300):\n    pid = os.fork()\n    if not pid:\n        time.sleep(60)\n        os._exit(0)\n"
        "    os.kill(pid, signal.SIGTERM)\n    signal.alarm(10)\n    assert os.waitpid(pid, 0)[1] == signal.SIGTERM\n"
        "print(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)"
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
