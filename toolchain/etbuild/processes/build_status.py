"""The status that a building process writes for its watching process: its stage, and whether it has reached its end. An
exit code is not enough, because a model may call `os._exit(0)`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import NoReturn

from etbuild.errors import Problem
from etbuild.files import scratch
from etbuild.processes.ending import end_process

GRACE_SECONDS = 5.0
"""The time for a process to remove unfinished files after SIGTERM, or to end after its work is done."""

_SLATE_BYTES = 16384


class Slate:
    """The status of a process, in memory that it shares with its watching process.

    Writes do not use the descriptor: a model may close descriptors of others, and the next file may get the same
    number.

    Args:
        descriptor: The descriptor of the shared memory. It may be closed afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        import mmap

        self.descriptor = descriptor
        self.scratch: list[str] = []
        """Directories of this process that must be removed when it ends."""
        self._memory = mmap.mmap(descriptor, _SLATE_BYTES)

    @classmethod
    def new(cls) -> Slate:
        """A new slate for watching another process, which has written nothing yet."""
        descriptor = os.memfd_create("etbuild")
        try:
            os.ftruncate(descriptor, _SLATE_BYTES)
            slate = cls(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        slate.write()
        return slate

    def write(self, stage: str | None = None, code: int | None = None) -> None:
        """Writes the stage of this process, or the exit code with which it has reached its end."""
        status = {"pid": os.getpid(), "stage": stage and stage[:500], "code": code}
        text = json.dumps({**status, "scratch": self.scratch}).encode()
        if len(text) > _SLATE_BYTES:  # without the list, the next build there removes the directories
            text = json.dumps(status).encode()
        self._memory[:] = text.ljust(_SLATE_BYTES)

    def stage(self) -> str | None:
        """The stage that was written last; None if it is unknown."""
        stage = self._read().get("stage")
        return stage if isinstance(stage, str) else None

    def pid(self) -> int:
        """The number of the process that wrote last; 0 if it is unknown."""
        pid = self._read().get("pid")
        return pid if isinstance(pid, int) else 0

    def code(self, pid: int) -> int | None:
        """The exit code with which this process has reached its end. None if it has not, or if a copy wrote last."""
        status = self._read()
        code = status.get("code")
        return code if status.get("pid") == pid and isinstance(code, int) else None

    def left(self) -> list[str]:
        """The directories that the other process had at its last write. It may have left them behind."""
        left = self._read().get("scratch")
        return [path for path in left if isinstance(path, str)] if isinstance(left, list) else []

    def close(self) -> None:
        """Releases the shared memory and its descriptor."""
        self._memory.close()
        os.close(self.descriptor)

    def _read(self) -> dict[str, object]:
        try:
            status = json.loads(self._memory[:])
        except ValueError:
            return {}
        return status if isinstance(status, dict) else {}


_slate: Slate | None = None  # the slate of this process, if a process watches it
_owner = 0  # the owner of the slate; its copies may write their stage, but not their directories


@contextlib.contextmanager
def in_stage(name: str) -> Iterator[None]:
    """Writes the stage of this process within this context."""
    if _slate is not None:
        _slate.write(name)
    yield
    if _slate is not None:
        _slate.write()


def last_stage() -> str | None:
    """The stage that this process, or a copy of it, wrote last; None if it is unknown."""
    return _slate.stage() if _slate is not None else None


def _note_scratch(path: str, exists: bool) -> None:
    """Records the directories of this process, but not of its copies, so that its watcher can remove them."""
    if _slate is None or _owner != os.getpid():
        return
    if exists:
        _slate.scratch.append(path)
    elif path in _slate.scratch:
        _slate.scratch.remove(path)
    _slate.write(_slate.stage())


def work(slate: Slate, run: Callable[[], int], end: Callable[[], None] = lambda: None) -> NoReturn:
    """Runs a command, writes its exit code to the slate, and ends this process.

    Args:
        slate: The memory that is shared with the watching process.
        run: Runs the command, and returns its exit code.
        end: Is called when all work is done.
    """
    import traceback

    global _slate, _owner
    _slate, _owner, code = slate, os.getpid(), 1
    slate.write()
    scratch.observers.append(_note_scratch)
    try:
        code = run()
    except SystemExit as asked:  # raised by the parser of the command line
        code = asked.code if isinstance(asked.code, int) else 1
    except BaseException:  # noqa: BLE001 - a bug of ours keeps its traceback
        traceback.print_exc()
    finally:
        if os.getpid() == _owner:
            slate.write(code=code)
            end_process(code, end)
        os._exit(code)


def how_it_ended(what: str, code: int, stage: str | None = None) -> Problem:
    """The problem of a process that ended before its work was complete.

    Args:
        what: The work, such as `the build`.
        code: The exit code, as `Popen.returncode`.
        stage: The last stage of the process, if it is known.
    """
    if code < 0:
        hint = None
        if -code == signal.SIGKILL:
            hint = f"the system usually sends SIGKILL when memory runs out; {_peak()}"
        return Problem(f"{what} ended with {_signal_name(-code)}{in_words(stage)}", hint=hint)
    hint = "does the model, or a library that it uses, call `os._exit`?"
    return Problem(f"{what} ended with exit code {code}{in_words(stage)}, before its work was complete", hint=hint)


def out_of_memory(what: str) -> Problem:
    """The problem of a process that could not get memory.

    Args:
        what: The work, such as `the build`.
    """
    return Problem(f"{what} ran out of memory", hint=f"{_peak()}")


def _peak() -> str:
    from etbuild.surroundings import memory

    less = "`--jobs 1` needs less memory, and in a build rule a larger `resource_set` keeps other steps from running"
    before = "`etbuild plan --memory` says before a build what it takes"
    return f"the largest process so far took {memory.peak() / 1e9:.1f} GB. {less}; {before}"


def in_words(stage: str | None) -> str:
    """` in the stage ...`, to continue a sentence; empty if the stage is unknown."""
    return f" in the stage `{stage}`" if stage else ""


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
