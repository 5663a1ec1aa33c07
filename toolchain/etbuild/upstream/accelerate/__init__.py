"""Speeds up lowering without changing its bytes, with switches that replace functions of PyTorch and ExecuTorch.

Each switch is a context manager in its own file, which explains what the switch saves and why the result does not
change. All switches are written for one version of both packages, and stay off for other versions: `releases.fitting`.
`docs/upstream.md` describes each switch as a change to PyTorch or ExecuTorch, and how much time or memory it saves.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager

from etbuild import releases

# In the order in which they are entered. The modules import torch, so each is imported only when it is used.
SWITCHES = (
    "compile_on_demand",
    "partition_without_printing",
    "share_provenance",
    "replay_once",
    "match_where_possible",
    "sort_in_place",
    "share_weights",
    "compute_values_once",
    "decompose_if_needed",
    "merge_by_sets",
    "read_hints_once",
    "cache_quantization",
)


@contextlib.contextmanager
def accelerated(on: Collection[str] = SWITCHES) -> Iterator[None]:
    """Returns a context manager in which this process lowers faster. On exit, all replaced functions are restored.

    Args:
        on: The names of the switches to use. All stay off if the installed versions do not fit.
    """
    with entered([name for name in SWITCHES if name in on]):
        yield


def exporting() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.export` is faster."""
    return entered(["compile_on_demand", "cache_quantization"])


def saving() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.save` is faster."""
    return entered(["save_without_canonical_form"])


def quantizing() -> AbstractContextManager[None]:
    """Returns a context manager in which methods are quantized faster."""
    return entered(["annotate_where_possible"])


def importing() -> AbstractContextManager[None]:
    """Returns a context manager in which ExecuTorch is imported faster."""
    return entered(["import_inductor_later"])


@contextlib.contextmanager
def entered(names: Sequence[str]) -> Iterator[None]:
    """Turns switches on by their names, in this order. All stay off if the installed versions do not fit."""
    with contextlib.ExitStack() as switches:
        if names and releases.fitting():
            for name in names:
                switches.enter_context(getattr(importlib.import_module(f"{__name__}.{name}"), name)())
        yield
