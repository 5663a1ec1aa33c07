"""Lowers the delegates of a method on several processors.

XNNPACK inherits ExecuTorch's `preprocess_multimethod`: a loop over all delegates, each of which is lowered from a copy
of its own and knows nothing of the others. Forks of this process take a share of them each, and send back what the loop
would have collected, which is put in its order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

from etbuild.errors import EtbuildError
from etbuild.patching import replaced
from etbuild.processes import forked

_LOOP = "__loop__"  # marks a `preprocess_multimethod` that does what ExecuTorch's does
_WORTH = 4  # delegates for each fork: fewer are done before a fork has started

Programs = dict[str, list[Any]]


@contextlib.contextmanager
def preprocess_in_parallel(at_once: int) -> Iterator[None]:
    """XNNPACK's delegates are lowered by several processes inside.

    Args:
        at_once: How many, at most.
    """
    in_a_row = XnnpackBackend.preprocess_multimethod

    def preprocess_multimethod(cls: Any, programs: Programs, specs: Programs) -> Programs:
        places = [(method, number) for method in programs for number in range(len(programs[method]))]
        forks = min(at_once, len(places) // _WORTH)
        if forks < 2:
            return in_a_row(programs, specs)  # type: ignore[no-any-return]

        def share(fork: int) -> Callable[[], list[Any]]:
            mine = places[fork::forks]
            return lambda: _in_a_fork(
                cls, [(programs[method][number], specs[method][number]) for method, number in mine]
            )

        try:
            shares = forked.run({str(fork): share(fork) for fork in range(forks)}, forks)
        except (EtbuildError, forked.ChildFailed):  # in a row, it fails where ExecuTorch says why
            return in_a_row(programs, specs)  # type: ignore[no-any-return]
        results = {place: shares[str(number % forks)][number // forks] for number, place in enumerate(places)}
        return {method: [results[method, number] for number in range(len(programs[method]))] for method in programs}

    setattr(preprocess_multimethod, _LOOP, True)
    with replaced(XnnpackBackend, "preprocess_multimethod", classmethod(preprocess_multimethod)):
        yield


def is_a_loop(preprocess_multimethod: Any) -> bool:
    """Whether the attribute of a class is what stands here for ExecuTorch's loop over all delegates."""
    return hasattr(getattr(preprocess_multimethod, "__func__", None), _LOOP)


def _in_a_fork(cls: Any, work: list[tuple[Any, Any]]) -> list[Any]:
    torch.set_num_threads(1)  # threads of a pool from before the fork are not there
    return [cls.preprocess(program, specs) for program, specs in work]
