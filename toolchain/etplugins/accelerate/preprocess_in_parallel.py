"""Lowers the delegates of a method on several processors.

XNNPACK inherits ExecuTorch's `preprocess_multimethod`, which is a loop over all delegates. Each delegate is lowered
from its own copy of a program, and does not depend on the others. Here, each of several forks lowers a part of the
delegates. Their results are returned in the order of the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

from etbuild.backends.backend import LOOP
from etbuild.errors import EtbuildError
from etbuild.patching import replaced
from etbuild.processes import forked
from etbuild.switches import Notes

_WORTH = 4  # minimum of delegates per fork: lowering fewer takes less time than starting a fork

Programs = dict[str, list[Any]]


@contextlib.contextmanager
def preprocess_in_parallel(at_once: int, notes: Notes | None = None) -> Iterator[None]:
    """Returns a context manager in which several processes lower XNNPACK's delegates.

    Args:
        at_once: The maximum number of processes.
        notes: The notes of a process besides its results. None: it has none.
    """
    in_a_row = XnnpackBackend.preprocess_multimethod

    def preprocess_multimethod(cls: Any, programs: Programs, specs: Programs) -> Programs:
        keys = [(method, number) for method in programs for number in range(len(programs[method]))]
        forks = min(at_once, len(keys) // _WORTH)
        if forks < 2:
            return in_a_row(programs, specs)  # type: ignore[no-any-return]

        def share(fork: int) -> Callable[[], tuple[list[Any], Any]]:
            mine = keys[fork::forks]
            work = [(programs[method][number], specs[method][number]) for method, number in mine]
            return lambda: (_in_a_fork(cls, work), notes and notes.take())

        try:
            shares = forked.run({str(fork): share(fork) for fork in range(forks)}, forks)
        except (EtbuildError, forked.ChildFailed):  # it runs again here, so that ExecuTorch raises its own error
            return in_a_row(programs, specs)  # type: ignore[no-any-return]
        for _, noted in shares.values():
            if notes is not None:
                notes.add(noted)
        results = {key: shares[str(number % forks)][0][number // forks] for number, key in enumerate(keys)}
        return {method: [results[method, number] for number in range(len(programs[method]))] for method in programs}

    setattr(preprocess_multimethod, LOOP, True)
    with replaced(XnnpackBackend, "preprocess_multimethod", classmethod(preprocess_multimethod)):
        yield


def _in_a_fork(cls: Any, work: list[tuple[Any, Any]]) -> list[Any]:
    torch.set_num_threads(1)  # a fork lacks the threads of the parent's pool
    return [cls.preprocess(program, specs) for program, specs in work]
