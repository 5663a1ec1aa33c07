"""Replaces the larger or smaller one of two sizes, which ExecuTorch cannot compute, where the limits of the sizes say
which one it is: `max(0, 1 - seq)` is 0."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram


def write(program: ExportedProgram) -> None:
    """Replaces such sizes in a program by numbers.

    Args:
        program: The method. It is changed in place.
    """
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            nodes = [node for node in graph_module.graph.nodes if node.target in (torch.sym_max, torch.sym_min)]
            decided = [(node, size) for node in nodes if (size := _decided(node.meta["val"])) is not None]
            for node, size in decided:
                _replace(node, size)
            if decided:
                graph_module.recompile()


def _decided(size: int | torch.SymInt) -> int | None:
    """The only value that a size can have; None if it can have several."""
    if isinstance(size, int):
        return size
    limits = size.node.shape_env.bound_sympy(size.node.expr)
    return int(limits.lower) if limits.is_singleton() else None


def _replace(node: torch.fx.Node, size: int) -> None:
    def instead(each: torch.fx.Node) -> torch.fx.Node | int:
        return size if each is node else each

    for user in [user for user in node.users if user.op != "output"]:
        user.args = torch.fx.map_arg(user.args, instead)
        user.kwargs = torch.fx.map_arg(user.kwargs, instead)
    if not node.users:
        node.graph.erase_node(node)
