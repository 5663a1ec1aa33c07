"""Corrects what ExecuTorch's XNNPACK backend gets wrong, while methods are lowered (`upstream_limits`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.backends.backend import Partitioners
from etbuild.patching import replaced

_MAX_DIMENSIONS = 6  # XNN_MAX_TENSOR_DIMS: the runtime loads no method with a delegate that has tensors of more
_LAYERS = ("aten.linear.default", "aten.convolution.default")
_BIAS = 2  # the index of a layer's argument
_PACKED = {  # by operator: the indexes of the arguments that the runtime packs
    **dict.fromkeys(_LAYERS, (1, _BIAS)),
    "aten.mm.default": (1,),
    "aten.addmm.default": (0, 2),
}
_KERNEL_DIMENSIONS = 3  # of a one-dimensional convolution


@contextlib.contextmanager
def corrected(partitioners: Partitioners, delegate_id: str) -> Iterator[None]:
    """A context in which the programs of XNNPACK load and compute correct numbers.

    Args:
        partitioners: The partitioners of each method.
        delegate_id: ExecuTorch's name of the backend.
    """
    with (
        _without_large_ranks(partitioners, delegate_id),
        _layouts_of_dynamic_inputs(),
        _layouts_of_quantized_outputs(),
        _constants_of_their_own(),
    ):
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
def _layouts_of_quantized_outputs() -> Iterator[None]:
    """Changes the layout of a statically quantized tensor only for the operators that need the change.

    ExecuTorch's pass changes it for all readers, also for those that it has planned with the other layout before, such
    as `exp` in the Mish of a convolution's result. They then read the elements in a wrong order.
    """
    from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import ChannelsLastTaggedReshapePass

    original = ChannelsLastTaggedReshapePass.insert_copy_q_dq

    def insert_copy_q_dq(self: Any, graph_module: Any, before: Any, after: Any, copy: Any, q_params: Any) -> None:
        planned = [user for user in before.users if user is not copy and user < after]
        if planned:
            with graph_module.graph.inserting_after(before):
                own = graph_module.graph.node_copy(before)
            for user in planned:
                user.replace_input_with(before, own)
        original(self, graph_module, before, after, copy, q_params)

    with replaced(ChannelsLastTaggedReshapePass, "insert_copy_q_dq", insert_copy_q_dq):
        yield


@contextlib.contextmanager
def _constants_of_their_own() -> Iterator[None]:
    """Gives readers of a constant that need it in different forms a constant each. Equal constants are stored once.

    - The runtime packs weights and biases when it loads a delegate, and then frees the constants that it has packed. It
      frees them also if another operator reads them later, which then crashes.
    - The bias of a quantized layer has a scale of its own for each call of the layer, and ExecuTorch writes the first.
    - ExecuTorch gives the kernel of a one-dimensional convolution another shape, again for each call of the layer.
    """
    from executorch.backends.xnnpack.xnnpack_preprocess import XNNPACKPassManager

    original = XNNPACKPassManager.transform

    def transform(self: Any) -> Any:
        _separate(self.exported_program, _kernel_of)
        program = original(self)
        _separate(program, _form)
        _check_convolutions(program)
        return program

    with replaced(XNNPACKPassManager, "transform", transform):
        yield


def _separate(program: Any, form: Callable[[Any, Any, int], str]) -> None:
    """Gives the readers of each constant that need different forms of it a constant each.

    Args:
        program: The ExportedProgram of a delegate. It is changed in place.
        form: Names the form that a reader needs. It takes the constant, the reader, and the argument's index.
    """
    from executorch.backends.transforms.utils import is_param_node

    for constant in program.graph.find_nodes(op="placeholder"):
        uses: dict[str, list[tuple[Any, int]]] = {}
        for user in constant.users:
            for index in [index for index, argument in enumerate(user.args) if argument is constant]:
                uses.setdefault(form(constant, user, index), []).append((user, index))
        if len(uses) < 2 or not is_param_node(program, constant):
            continue
        for number, readers in enumerate([*uses.values()][1:], 1):
            copy = _copied(program, constant, f"{constant.name}_{number}_of_{len(uses)}")
            for user, index in readers:
                user.update_arg(index, copy)


def _copied(program: Any, constant: Any, name: str) -> Any:
    """A new constant with the content of another one. ExecuTorch's function for that does not take the graph that its
    passes leave."""
    from executorch.backends.transforms.utils import get_param_tensor
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    with program.graph.inserting_before(constant):
        copy = program.graph.placeholder(name)
    copy.meta = dict(constant.meta)
    program.state_dict[copy.name] = get_param_tensor(program, constant)
    specs = program.graph_signature.input_specs
    place = next(index for index, spec in enumerate(specs) if spec.arg.name == constant.name)
    specs.insert(place, InputSpec(InputKind.PARAMETER, TensorArgument(copy.name), copy.name))
    return copy


def _form(constant: Any, user: Any, index: int) -> str:
    """The form in which an operator of a finished graph reads a constant."""
    from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_dynamic_qdq

    operator = _operator(user)
    if index not in _PACKED.get(operator, ()):
        return "as it is"
    source = user.args[0]
    if operator in _LAYERS and index == _BIAS and is_dequant(source) and not is_dynamic_qdq(source):
        return f"of {user.name}"
    return "packed"


def _kernel_of(constant: Any, user: Any, index: int) -> str:
    """The convolution whose one-dimensional kernel a constant is, if it is one, before ExecuTorch's passes."""
    reader = next(iter(user.users), user) if "dequantize" in _operator(user) else user
    is_kernel = _operator(reader) == "aten.convolution.default" and constant.meta["val"].dim() == _KERNEL_DIMENSIONS
    return f"of {user.name}" if is_kernel else ""


def _check_convolutions(program: Any) -> None:
    """Fails if the runtime could not load a convolution: its result is quantized, and its kernel is not.

    PT2E leaves the first call of a layer that is called twice in fp32. For a one-dimensional convolution, ExecuTorch
    does not notice that.
    """
    from executorch.backends.xnnpack.utils.quant_utils import (
        is_dequant,
        is_dynamic_qdq,
        is_quant,
        is_tagged_as_implicit_q_dq,
    )

    for node in program.graph.nodes:
        of_floats = _operator(node) == "aten.convolution.default" and not is_dequant(node.args[1])
        fused = [user for user in node.users if is_quant(user) and is_tagged_as_implicit_q_dq(user)]
        if of_floats and not all(map(is_dynamic_qdq, fused)):
            raise ValueError("PT2E cannot quantize a one-dimensional convolution that is called twice")


def _operator(node: Any) -> str:
    return str(getattr(node.target, "__name__", ""))


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
