"""Removes checks of tensors of truths from a program, such as those of `torch._check_tensor_all`.

ExecuTorch removes every check of values, and then cannot compute what a truth was made of for it.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

_CHECK = torch.ops.aten._assert_scalar.default
_ITEMS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


def remove(program: ExportedProgram) -> None:
    """Removes the checks, and what only they need. The program is changed in place."""
    for graph_module in program.graph_module.modules():
        if not isinstance(graph_module, torch.fx.GraphModule):
            continue
        graph = graph_module.graph
        checks = [node for node in graph.find_nodes(op="call_function", target=_CHECK) if _is_of_truth(node)]
        for node in checks:
            graph.erase_node(node)
        if checks:
            graph.eliminate_dead_code()
            graph_module.recompile()


def _is_of_truth(check: torch.fx.Node) -> bool:
    """Whether a check needs the only element of a tensor of truths."""
    seen: set[torch.fx.Node] = set()
    left = [check]
    while left:
        node = left.pop()
        if node.target in _ITEMS:
            if node.all_input_nodes[0].meta["val"].dtype is torch.bool:
                return True
        elif node.op == "call_function" and node not in seen:
            left.extend(node.all_input_nodes)
        seen.add(node)
    return False
