"""Asks PyTorch's dispatcher for its composite operators once where it is asked for each namespace.

`run_decompositions`, which lowering calls three times a method, asks 40 times and each time gets the same answer. Then
it replaces kernels of all of these operators, and puts them back. For that PyTorch evaluates an annotation
`Callable[...]` 6,000 times; `typing.Callable` remembers what it was subscripted with, that of `collections.abc` not.
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
    """The composite operators: materialized once, and then collected namespace by namespace."""
    utils._materialize_cpp_cia_ops()
    with replaced(utils, "_materialize_cpp_cia_ops", lambda: None):
        return _collect_all()


_collect_all = utils._collect_all_valid_cia_ops


@contextlib.contextmanager
def collect_operators_once() -> Iterator[None]:
    """Decompositions are set up faster inside."""
    name = _collect_all.__name__
    importers = [module for module in list(sys.modules.values()) if vars(module).get(name) is _collect_all]
    with contextlib.ExitStack() as switches:
        for module in importers:
            switches.enter_context(replaced(module, name, _collect))
        switches.enter_context(replaced(torch._ops, "Callable", typing.Callable))
        yield
