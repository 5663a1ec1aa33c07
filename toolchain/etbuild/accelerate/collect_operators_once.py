"""Asks PyTorch's dispatcher for its composite operators once, instead of once for each namespace.

Lowering calls `run_decompositions` up to three times for each method. Each call asks the dispatcher 40 times and always
gets the same answer. Then it replaces the kernels of all these operators and restores them. For that, PyTorch evaluates
an annotation `Callable[...]` 6,000 times. `typing.Callable` caches its subscriptions; `collections.abc.Callable` does
not.
"""

from __future__ import annotations

import contextlib
import sys
import typing
from collections.abc import Iterator
from typing import Any

import torch._ops
from torch._export import utils

from etbuild.patching import replaced


def _collect() -> Any:
    """Materializes the composite operators once, and then collects them by namespace."""
    utils._materialize_cpp_cia_ops()
    with replaced(utils, "_materialize_cpp_cia_ops", lambda: None):
        return _collect_all()


_collect_all = utils._collect_all_valid_cia_ops


@contextlib.contextmanager
def collect_operators_once() -> Iterator[None]:
    """Returns a context manager in which `run_decompositions` is set up faster."""
    name = _collect_all.__name__
    importers = [module for module in list(sys.modules.values()) if vars(module).get(name) is _collect_all]
    with contextlib.ExitStack() as switches:
        for module in importers:
            switches.enter_context(replaced(module, name, _collect))
        switches.enter_context(replaced(torch._ops, "Callable", typing.Callable))
        yield
