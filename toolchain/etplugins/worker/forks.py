"""What all processes that fork for each build do in their forks."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable

from etbuild.processes import sandbox


def end_of(parent: int) -> Callable[[], None]:
    """What a fork does at its end.

    Args:
        parent: The process that forks, which usually ends what a fork has left. If it has ended, the fork does.
    """
    return functools.partial(_end, parent)


def _end(parent: int) -> None:
    if os.getppid() != parent:
        sandbox.end_orphans(seconds=0)  # also processes that have left the group
        os.killpg(0, signal.SIGKILL)
