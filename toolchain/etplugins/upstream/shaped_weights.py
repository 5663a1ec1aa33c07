"""Gives the weight of a layer the shape in which a method reads it, such as the kernels of a volume those of images.

XNNPACK takes a layer only if its weight is a parameter, and not a view of one. A view has the bytes of the weight, so
the program has the same data, under the same name.

Limit: `views-of-weights`.
"""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Node

_VIEW = ops.edge.aten.view_copy.default
_LAYERS = {ops.edge.aten.convolution.default, ops.edge.aten.linear.default}


def shape(program: ExportedProgram) -> None:
    """Makes the readers of a view read the weight, which gets the shape of the view.

    A weight keeps its shape if the method writes to it, reads it in several shapes, or reads it outside of layers.

    Args:
        program: The method in the edge dialect. It is changed in place.
    """
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    program._state_dict, program._constants = {**program.state_dict}, {**program.constants}  # other methods share them
    for weight in program.graph.find_nodes(op="placeholder"):
        views = [*weight.users]
        if weight.name not in names or names[weight.name] in written or not _are_one(views):
            continue
        content = program.state_dict if names[weight.name] in program.state_dict else program.constants
        tensor = content[names[weight.name]]
        shaped = tensor.detach().view(views[0].meta["val"].shape)
        content[names[weight.name]] = (
            torch.nn.Parameter(shaped, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else shaped
        )
        weight.meta["val"] = views[0].meta["val"]
        for view in views:
            view.replace_all_uses_with(weight)
            program.graph.erase_node(view)
    program.graph_module.recompile()


def _are_one(users: list[Node]) -> bool:
    """Whether all users of a weight view it in the same shape, and only layers read the views, as their weights.

    What others read keeps its shape: files with weights of several programs hold it.
    """
    shapes = {tuple(user.meta["val"].shape) for user in users if user.target is _VIEW}
    return len(shapes) == 1 and all(
        user.target is _VIEW
        and all(reader.target in _LAYERS and reader.args[1] is user is not reader.args[0] for reader in user.users)
        for user in users
    )
