"""The switches for lowering."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager

from etbuild import releases
from etbuild.accelerate.switches import entered

# In the order in which they are entered. The modules import torch, so each one is imported only when it is used.
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


def importing() -> AbstractContextManager[None]:
    """Returns a context manager in which ExecuTorch is imported faster."""
    from etbuild.accelerate.import_inductor_later import import_inductor_later

    return import_inductor_later() if releases.fitting() else contextlib.nullcontext()
