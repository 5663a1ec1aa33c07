"""Workarounds for the emission of methods: see `etbuild.workarounds.OfEmission`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from executorch.exir import EdgeProgramManager
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from etplugins.upstream import branch_results, dequantize, lowering, viewed_weights
from etplugins.upstream.branch_results import check
from etplugins.upstream.size_bounds import size_bounds

__all__ = ["around", "check", "passes", "size_bounds"]


def passes(
    shard_of: Callable[[Node], str | None] | None, *, outputs: bool
) -> list[Callable[[GraphModule], PassResult]]:
    """Copies named data before its shape is changed, and results of `cond`."""
    views = [] if shard_of is None else [viewed_weights.copies(shard_of)]
    return [*views, branch_results.copies(outputs=outputs)]


@contextmanager
def around(edge: EdgeProgramManager) -> Iterator[None]:
    """A context in which the operators of methods are known, and their graphs are traced and verified again."""
    dequantize.register_kernels(edge)
    with lowering.around():
        yield
