"""What a process that builds says of itself, for the one that watches it: which stage it is in, and that it has reached
the end. An exit code alone says nothing: a model may call `os._exit(0)`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from etbuild.errors import Problem
from etbuild.files import scratch

GRACE_SECONDS = 5.0
"""How long a process may take to remove half-made files after SIGTERM, or to end after its work is done."""

_SLATE_BYTES = 16384


class Slate:
    """What a process says of itself while it works: memory that it shares with the one that watches it.

    The memory is written without its descriptor. A model may close descriptors that are not its own, and a file that it
    opens next may get the same number.

    Args:
        descriptor: Of the shared memory. It may be closed afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        import mmap

        self.descriptor = descriptor
        self.scratch: list[str] = []
        """Directories of this process that go with it."""
        self._memory = mmap.mmap(descriptor, _SLATE_BYTES)

    @classmethod
    def new(cls) -> Slate:
        """One of this process, which watches another that has not said anything yet."""
        descriptor = os.memfd_create("etbuild")
        os.ftruncate(descriptor, _SLATE_BYTES)
        slate = cls(descriptor)
        slate.write()
        return slate

    def write(self, stage: str | None = None, code: int | None = None) -> None:
        """Says which stage this process is in, or the exit code that it has reached the end with."""
        said = {"pid": os.getpid(), "stage": stage and stage[:500], "code": code}
        text = json.dumps({**said, "scratch": self.scratch}).encode()
        if len(text) > _SLATE_BYTES:  # the next process that builds there removes them
            text = json.dumps(said).encode()
        self._memory[:] = text.ljust(_SLATE_BYTES)

    def stage(self) -> str | None:
        """The stage that was written last."""
        stage = self._read().get("stage")
        return stage if isinstance(stage, str) else None

    def pid(self) -> int:
        """The process that wrote last."""
        pid = self._read().get("pid")
        return pid if isinstance(pid, int) else 0

    def code(self, pid: int) -> int | None:
        """The exit code that this process, and no copy of it, has reached the end with. None: it has not."""
        said = self._read()
        code = said.get("code")
        return code if said.get("pid") == pid and isinstance(code, int) else None

    def left(self) -> list[str]:
        """The directories that the other process had when it wrote last, and may have left."""
        left = self._read().get("scratch")
        return [path for path in left if isinstance(path, str)] if isinstance(left, list) else []

    def close(self) -> None:
        """Ends its use here."""
        self._memory.close()
        os.close(self.descriptor)

    def _read(self) -> dict[str, object]:
        try:
            said = json.loads(self._memory[:])
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}


_slate: Slate | None = None  # of this process, if another one watches it


@contextlib.contextmanager
def in_stage(name: str) -> Iterator[None]:
    """Says which stage this process is in, as long as the context lasts."""
    if _slate is not None:
        _slate.write(name)
    yield
    if _slate is not None:
        _slate.write()


def _note_scratch(path: str, exists: bool) -> None:
    """Says which directories this process, and no copy of it, has: the one that watches it removes what is left."""
    if _slate is None or _slate.pid() != os.getpid():
        return
    if exists:
        _slate.scratch.append(path)
    elif path in _slate.scratch:
        _slate.scratch.remove(path)
    _slate.write(_slate.stage())


def work(slate: Slate, run: Callable[[], int], end: Callable[[], None] = lambda: None) -> NoReturn:
    """Runs a command, says on the slate how it ended, and ends this process.

    Args:
        slate: Shared with the process that watches this one.
        run: Runs the command, and returns its exit code.
        end: Called when nothing is left to do.
    """
    import atexit
    import traceback

    global _slate
    _slate, worker, code = slate, os.getpid(), 1
    slate.write()
    scratch.observers.append(_note_scratch)
    try:
        code = run()
    except SystemExit as asked:  # by the parser of the command line
        code = asked.code if isinstance(asked.code, int) else 1
    except BaseException:  # noqa: BLE001 - a bug of ours keeps its traceback
        traceback.print_exc()
    finally:
        if os.getpid() == worker:
            slate.write(code=code)
            # Threads that a model has left are not waited for. Handlers are run, such as those that remove temporary
            # directories; what they print goes out too.
            for last in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush, end):
                with contextlib.suppress(BaseException):
                    last()
        os._exit(code)


def how_it_ended(what: str, code: int, stage: str | None = None) -> Problem:
    """What is wrong with a process that ended before its work did.

    Args:
        what: Its work, such as `the build`.
        code: As `Popen.returncode`.
        stage: The stage that it was in.
    """
    if code < 0:
        hint = None
        if -code == signal.SIGKILL:
            hint = f"a process is mostly killed by SIGKILL when the memory runs out; {_peak()}. `--jobs 1` needs less"
        return Problem(f"{what} ended with {_signal_name(-code)}{in_words(stage)}", hint=hint)
    hint = "does the model, or a library that it uses, call `os._exit`?"
    return Problem(f"{what} ended with exit code {code}{in_words(stage)}, before its work was done", hint=hint)


def out_of_memory(what: str) -> Problem:
    """What is wrong where a process was refused memory.

    Args:
        what: Its work, such as `the build`.
    """
    return Problem(f"{what} ran out of memory", hint=f"{_peak()}. `--jobs 1` needs less memory")


def _peak() -> str:
    import resource

    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return f"the largest process so far took {max(resource.getrusage(each).ru_maxrss for each in who) / 1e6:.1f} GB"


def in_words(stage: str | None) -> str:
    """` in the stage ...`, as the continuation of a sentence; nothing where the stage is not known."""
    return f" in the stage `{stage}`" if stage else ""


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
