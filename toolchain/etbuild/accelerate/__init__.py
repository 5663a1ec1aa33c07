"""Lowering in less time, with the same bytes: switches around PyTorch and ExecuTorch, whose code stays as it is.

Each switch is a context manager in a file of its own, which says what it saves and why nothing changes. All of them are
written against one version of both packages and stay off for any other: `releases.fitting`. `docs/upstream.md` says
what each would be as a change to the code that it works around, and what it is worth.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

from etbuild import releases

# In the order in which they are entered. The modules import torch, so that each is imported when it is used.
SWITCHES = (
    "compile_on_demand",
    "share_provenance",
    "replay_once",
    "match_where_possible",
    "sort_in_place",
    "share_weights",
    "collect_operators_once",
)


@contextlib.contextmanager
def accelerated(on: Collection[str] = SWITCHES) -> Iterator[None]:
    """Lowers faster inside, in this process. What was imported before stays as it is afterwards.

    Args:
        on: The switches to use; each of them stays off if the packages do not fit.
    """
    with contextlib.ExitStack() as switches:
        if on and releases.fitting():
            for name in SWITCHES:
                if name in on:
                    switches.enter_context(_switch(name)())
        yield


def importing() -> AbstractContextManager[None]:
    """Imports ExecuTorch faster inside."""
    from etbuild.accelerate.import_inductor_later import import_inductor_later

    return import_inductor_later() if releases.fitting() else contextlib.nullcontext()


def _switch(name: str) -> Callable[[], AbstractContextManager[None]]:
    module = importlib.import_module(f"{__name__}.{name}")
    found: Callable[[], AbstractContextManager[None]] = getattr(module, name)
    return found
