"""Workarounds for the emission of methods: see `etbuild.workarounds.OfEmission`."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from etplugins.upstream import branch_results, viewed_weights
from etplugins.upstream.branch_results import check
from etplugins.upstream.lowering import around

__all__ = ["around", "check", "passes"]


def passes(
    shard_of: Callable[[Node], str | None] | None, *, outputs: bool
) -> list[Callable[[GraphModule], PassResult]]:
    """Copies named data before its shape is changed, and results of `cond`."""
    views = [] if shard_of is None else [viewed_weights.copies(shard_of)]
    return [*views, branch_results.copies(outputs=outputs)]
