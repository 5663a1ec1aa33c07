"""Searches a method for convolutions with a batch norm only if it has a batch norm.

XNNPACK's quantizer searches each method for a convolution before a batch norm. For that, it exports twelve modules
through TorchDynamo, which takes longer than the rest of the quantization of a small model. `prepare_pt2e` first folds
batch norms into convolutions, so the search finds something only if a model is trained again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from etbuild.patching import replaced

_UTILITIES = "executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils"


@contextlib.contextmanager
def annotate_where_possible() -> Iterator[None]:
    """Returns a context manager in which XNNPACK's quantizer exports no pattern for a method without a batch norm."""
    utilities = sys.modules.get(_UTILITIES)
    if utilities is None:  # no quantizer of XNNPACK exists
        yield
        return
    annotate = utilities._do_annotate_conv_bn

    def annotate_if_any(module: GraphModule, *arguments: Any, **options: Any) -> Any:
        if has_batch_norm(module):
            return annotate(module, *arguments, **options)
        # The rest of the function still runs: it draws random numbers, and removes dead code.
        with (
            replaced(utilities, "_get_aten_graph_module_for_pattern", _empty),
            replaced(utilities, "SubgraphMatcherWithNameNodeMap", _NoMatch),
        ):
            return annotate(module, *arguments, **options)

    with replaced(utilities, "_do_annotate_conv_bn", annotate_if_any):
        yield


def has_batch_norm(module: GraphModule) -> bool:
    """Whether a graph calls a batch norm of any kind, as all patterns of the search do."""
    return any("batch_norm" in str(node.target) for node in module.graph.nodes)


def _empty(*arguments: object) -> GraphModule:
    return GraphModule(torch.nn.Module(), Graph())


class _NoMatch:
    """A matcher that finds nothing."""

    def __init__(self, pattern: GraphModule, ignore_literals: bool) -> None: ...

    def match(self, graph: Graph) -> list[Any]:
        return []
