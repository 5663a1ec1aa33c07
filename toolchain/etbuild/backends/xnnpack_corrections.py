"""Corrects what ExecuTorch's XNNPACK backend gets wrong, while methods are lowered (`upstream_limits`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.backends.backend import Partitioners
from etbuild.patching import replaced

_MAX_DIMENSIONS = 6  # XNN_MAX_TENSOR_DIMS: the runtime loads no method with a delegate that has tensors of more
_PACKED = {  # by operator: the indexes of the arguments that the runtime packs
    "aten.linear.default": (1, 2),
    "aten.convolution.default": (1, 2),
    "aten.mm.default": (1,),
    "aten.addmm.default": (0, 2),
}


@contextlib.contextmanager
def corrected(partitioners: Partitioners, delegate_id: str) -> Iterator[None]:
    """A context in which the programs of XNNPACK load and compute correct numbers.

    Args:
        partitioners: The partitioners of each method.
        delegate_id: ExecuTorch's name of the backend.
    """
    with _without_large_ranks(partitioners, delegate_id), _layouts_of_dynamic_inputs(), _constants_of_their_own():
        yield


@contextlib.contextmanager
def _without_large_ranks(partitioners: Partitioners, delegate_id: str) -> Iterator[None]:
    """XNNPACK takes no operators of tensors that have more dimensions than it knows."""
    from executorch.exir.backend.canonical_partitioners.config_partitioner import ConfigerationBasedPartitioner

    with contextlib.ExitStack() as changed:
        for partitioner in {id(one): one for own in partitioners.values() for one in own}.values():
            if isinstance(partitioner, ConfigerationBasedPartitioner) and _is_for(partitioner, delegate_id):
                for config in partitioner.target_partitioner_configs.values():
                    check = _of_few_dimensions(config.check_constraints)
                    changed.enter_context(replaced(config, "check_constraints", check))
        yield


@contextlib.contextmanager
def _layouts_of_dynamic_inputs() -> Iterator[None]:
    """Copies the input of a dynamically quantized convolution to channels_last right before it is quantized.

    ExecuTorch's pass copies the input of the whole delegate instead, and the operators in between do not know that.
    They then read its elements in a wrong order, or the runtime refuses their shapes.
    """
    import torch
    from executorch.backends.xnnpack._passes import channels_last_tagged_reshape_pass as layouts
    from executorch.exir.dialects._ops import ops

    of_pass = layouts.ChannelsLastTaggedReshapePass
    original = of_pass.input_to_nhwc

    def input_to_nhwc(self: Any, graph_module: Any, dequantize: Any, target: Any) -> None:
        is_dynamic = layouts.is_dequant(dequantize) and layouts.is_dynamic_qdq(dequantize)
        if not is_dynamic or self.is_nhwc_node(dequantize) or dequantize.args[0].args[0].op != "call_function":
            original(self, graph_module, dequantize, target)
            return
        quantize = dequantize.args[0]
        source = quantize.args[0]
        with graph_module.graph.inserting_after(source):
            copy = self.create_call_function_node(
                graph_module, ops.edge.aten._to_copy.default, (source,), memory_format=torch.channels_last
            )
        self.mark_as_nhwc_node(copy)
        ranges = {each.all_input_nodes[0] for each in quantize.args[1:3]}  # what chooses the scale and the zero point
        for reader in (quantize, *sorted(ranges)):
            reader.replace_input_with(source, copy)

    with replaced(of_pass, "input_to_nhwc", input_to_nhwc):
        yield


@contextlib.contextmanager
def _constants_of_their_own() -> Iterator[None]:
    """Gives a constant to each reader that needs it unpacked, if another operator of the delegate packs it.

    The runtime packs weights and biases when it loads a delegate, and then frees the constants that it has packed. It
    frees them also if another operator reads them later, which then crashes. Equal constants are stored once.
    """
    from executorch.backends.xnnpack.xnnpack_preprocess import XNNPACKPassManager

    original = XNNPACKPassManager.transform

    def transform(self: Any) -> Any:
        program = original(self)
        for node in program.graph.find_nodes(op="placeholder"):
            _separate(program, node)
        return program

    with replaced(XNNPACKPassManager, "transform", transform):
        yield


def _separate(program: Any, constant: Any) -> None:
    """Gives a constant of a delegate to the operators that do not pack it, if one packs it.

    Args:
        program: The delegate's ExportedProgram. It is changed in place.
        constant: A placeholder of it.
    """
    from torch.export.graph_signature import InputKind

    uses = [(user, index) for user in constant.users for index, arg in enumerate(user.args) if arg is constant]
    unpacked = [(user, index) for user, index in uses if not _packs(user, index)]
    if not unpacked or len(unpacked) == len(uses):
        return
    from executorch.backends.transforms.utils import create_constant_placeholder, get_param_tensor

    name, data = f"{constant.name}_unpacked", get_param_tensor(program, constant)
    with program.graph.inserting_before(constant):
        copy = create_constant_placeholder(program, program.graph, name, InputKind.PARAMETER, data)
    copy.meta = dict(constant.meta)
    for user, index in unpacked:
        user.update_arg(index, copy)


def _packs(user: Any, index: int) -> bool:
    """Whether the runtime packs an operator's argument, if it is a constant."""
    return index in _PACKED.get(getattr(user.target, "__name__", ""), ())


def _is_for(partitioner: Any, delegate_id: str) -> bool:
    return bool(partitioner.delegation_spec.backend_id == delegate_id)


def _of_few_dimensions(check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Returns a check of an operator that is also false if a tensor has too many dimensions."""

    def checked(node: Any, program: Any) -> bool:
        return all(rank <= _MAX_DIMENSIONS for rank in _ranks(node)) and check(node, program)

    return checked


def _ranks(node: Any) -> Iterator[int]:
    """The numbers of dimensions of an operator's inputs and results."""
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for one in value if isinstance(value, tuple | list) else (value,):
            yield len(getattr(one, "shape", ()))
