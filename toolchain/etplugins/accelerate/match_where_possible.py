"""Searches for a pattern only in graphs that contain its characteristic operator.

XNNPACK searches every delegate for bilinear upsampling and for attention. For that, it exports and lowers models of
both once in a process, through TorchDynamo, which takes a second or two. Then it compares all pairs of graphs. If all
graphs of a pattern have a certain operator, a graph without that operator cannot match.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import ConvertToUpsampleBilinear2d
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult
from torch.fx import GraphModule

from etbuild.patching import replaced

# An operator that every graph of the pass's pattern has. A test checks this.
NEEDED = {
    ConvertToSDPAPass: ops.edge.aten.any.dim,
    ConvertToUpsampleBilinear2d: ops.edge.aten.upsample_bilinear2d.vec,
}


def _where_possible(pass_class: type[ExportPass]) -> Callable[[ExportPass, GraphModule], PassResult]:
    match, needed = pass_class.call, NEEDED[pass_class]

    def call(self: ExportPass, module: GraphModule) -> PassResult:
        if any(node.target == needed for node in module.graph.nodes):
            result: PassResult = match(self, module)
            return result
        return ExportPass.call(self, module)  # the pass does this if nothing matches

    return call


@contextlib.contextmanager
def match_where_possible() -> Iterator[None]:
    """Returns a context manager in which the passes in `NEEDED` skip graphs that cannot match."""
    with contextlib.ExitStack() as switches:
        for pass_class in NEEDED:
            switches.enter_context(replaced(pass_class, "call", _where_possible(pass_class)))
        yield
