"""Corrects the graphs of XNNPACK's delegates: their constants, and their conversions between float32 and int8.

Limits: `convolutions-of-one-input`, `xnnpack-weight-twice`, `xnnpack-bias-twice`, `xnnpack-kernel-twice`,
`xnnpack-transposed-twice`, `xnnpack-copied-results`, `xnnpack-borders`, `xnnpack-conv1d-floats`, `xnnpack-batch-norms`,
`xnnpack-activations`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from executorch.backends.transforms.utils import get_param_tensor, is_param_node
from executorch.backends.xnnpack._passes import decompose_batch_norm, fuse_batch_norm
from executorch.backends.xnnpack._passes.conv1d_unsqueeze_pass import Conv1dUnsqueezePass
from executorch.backends.xnnpack._passes.fuse_activation_pass import FuseActivationPass
from executorch.backends.xnnpack.utils.quant_utils import (
    IS_IMPLICIT_Q_DQ_TAG,
    is_dequant,
    is_dynamic_qdq,
    is_quant,
    is_tagged_as_implicit_q_dq,
)
from executorch.backends.xnnpack.xnnpack_preprocess import XNNPACKPassManager
from executorch.exir.dialects._ops import ops
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.nn import Parameter

from etbuild.patching import replaced
from etplugins.upstream import xnnpack_norms
from etplugins.upstream.xnnpack_operators import operator_of

_LAYERS = ("aten.linear.default", "aten.convolution.default")
_KERNEL, _BIAS = 1, 2  # the indexes of a layer's arguments
_PACKED = {  # by operator: the indexes of the arguments that the runtime packs
    **dict.fromkeys(_LAYERS, (_KERNEL, _BIAS)),
    "aten.mm.default": (1,),
    "aten.addmm.default": (0, 2),
}
_KERNEL_DIMENSIONS = 3  # of a one-dimensional convolution


@contextlib.contextmanager
def corrected_graphs() -> Iterator[None]:
    """A context in which operators share only constants in one form, and convert between float32 and int8.

    Readers that need a constant in different forms get their own constants. Equal constants are stored once.

    - The runtime packs weights and biases when it loads a delegate, and then frees the constants that it has packed. It
      does so even if another operator reads them later, which then crashes.
    - The bias of a quantized layer has its own scale for each call of the layer, and ExecuTorch writes the first.
    - ExecuTorch changes the shape of a one-dimensional convolution's kernel, again for each call of the layer.
    - The kernel of a transposed convolution has another layout than that of a convolution, and ExecuTorch writes the
      first.
    """
    created = _with_a_free_name(fuse_batch_norm.create_constant_placeholder)  # may already be a replacement
    with (
        replaced(XNNPACKPassManager, "transform", _transform),
        replaced(Conv1dUnsqueezePass, "insert_q_dq_pair", _quantize_if_the_kernel_is),
        replaced(decompose_batch_norm, "create_constant_placeholder", created),
        replaced(fuse_batch_norm, "create_constant_placeholder", created),
        replaced(FuseActivationPass, "get_output_min_max_from_activation", _bounds_of_both),
    ):
        yield


_transform_with_passes = XNNPACKPassManager.transform


def _transform(self: Any) -> Any:
    xnnpack_norms.write_out(self.exported_program)
    _convert_at_borders(self.exported_program.graph)
    _quantize_for_each_convolution(self.exported_program.graph)
    _separate(self.exported_program, _kernel_of)
    program = _transform_with_passes(self)
    _separate(program, _form)
    _write_each_result(program.graph)
    return program


def _write_each_result(graph: Any) -> None:
    """Copies a value that is two results of a delegate, or an input and a result: ExecuTorch refuses both.

    Its passes remove copies, such as `x.clone()` in a model that then writes to the clone and still reads `x`.
    """
    output = graph.output_node()
    written: list[Any] = []
    with graph.inserting_before(output):
        for result in output.args[0]:
            if result in written or result.op == "placeholder":
                copy = graph.call_function(ops.edge.aten.clone.default, (result,))
                copy.meta = dict(result.meta)
                written.append(copy)
            else:
                written.append(result)
    output.args = (written,)


def _with_a_free_name(create: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the constants of each folded batch norm a name that no other constant of the graph has.

    ExecuTorch names them after the weight, and treats a constant of that name as the same one. So two batch norms after
    one layer, with one weight, or without any, would be equal.
    """
    numbers = itertools.count()

    def created(*arguments: Any, **named: Any) -> Any:
        names = {node.name for node in named["graph"].find_nodes(op="placeholder")}
        name = named["name"]
        while name in names:
            name = f"{named['name']}_{next(numbers)}"
        return create(*arguments, **{**named, "name": name})

    return created


_bounds_of_last = FuseActivationPass.get_output_min_max_from_activation


def _bounds_of_both(self: Any, activation: Any) -> Any:
    """Fuses an activation with an operator that has one already, so that both apply. ExecuTorch keeps the last one."""
    last = _bounds_of_last(self, activation)
    first = FuseActivationPass.get_fused_activation(activation.args[0])
    if first is None:
        return last
    least, most = float(last.output_min), float(last.output_max)
    bounds = [min(max(float(bound), least), most) for bound in (first.output_min, first.output_max)]
    return type(last)(*("+inf" if bound == math.inf else bound for bound in bounds))


_insert_q_dq_pair = Conv1dUnsqueezePass.insert_q_dq_pair


def _quantize_if_the_kernel_is(self: Any, graph: Any, anchor: Any, q_params: Any) -> None:
    """Leaves the input and the result of a one-dimensional convolution in float32 if its kernel is.

    If the operator before or after such a convolution is quantized, ExecuTorch quantizes the operators that it adds
    around the convolution.
    """
    layer = anchor if operator_of(anchor) == "aten.convolution.default" else next(iter(anchor.users))
    if is_dequant(layer.args[_KERNEL]):
        _insert_q_dq_pair(self, graph, anchor, q_params)


def _separate(program: Any, form: Callable[[Any, Any, int], str]) -> None:
    """If readers of a constant need different forms of it, gives each form its own constant, in place. `form` returns
    the form for a reader, from the constant, the reader, and the argument's index."""
    for constant in program.graph.find_nodes(op="placeholder"):
        uses: dict[str, list[tuple[Any, int]]] = {}
        for user in constant.users:
            for index in [index for index, argument in enumerate(user.args) if constant in _nodes(argument)]:
                uses.setdefault(form(constant, user, index), []).append((user, index))
        if len(uses) < 2 or not is_param_node(program, constant):
            continue
        for number, readers in enumerate([*uses.values()][1:], 1):
            copy = _copied(program, constant, f"{constant.name}_{number}_of_{len(uses)}")
            for user, index in readers:
                argument = user.args[index]
                one = [copy if each is constant else each for each in _nodes(argument)]
                user.update_arg(index, one if isinstance(argument, list | tuple) else copy)


def _nodes(argument: Any) -> Sequence[Any]:
    """The operators and constants in an argument: for example, `cat` has several."""
    return argument if isinstance(argument, list | tuple) else [argument]


def _copied(program: Any, constant: Any, name: str) -> Any:
    """A new constant with the content of another one. ExecuTorch's own function fails for the graph after its
    passes."""
    with program.graph.inserting_before(constant):
        copy = program.graph.placeholder(name)
    copy.meta = dict(constant.meta)
    program.state_dict[copy.name] = content = get_param_tensor(program, constant)
    specs = program.graph_signature.input_specs
    place = next(index for index, spec in enumerate(specs) if spec.arg.name == constant.name)
    is_parameter = isinstance(content, Parameter)
    kind = InputKind.PARAMETER if is_parameter else InputKind.BUFFER
    specs.insert(place, InputSpec(kind, TensorArgument(copy.name), copy.name, None if is_parameter else True))
    return copy


def _form(constant: Any, user: Any, index: int) -> str:
    """The form in which an operator of a finished graph reads a constant."""
    user, index = _reader(user, index)
    operator = operator_of(user)
    if index not in _PACKED.get(operator, ()):
        return "as it is"
    source = user.args[0]
    if operator in _LAYERS and index == _BIAS and is_dequant(source) and not is_dynamic_qdq(source):
        return f"of {user.name}"
    if operator == "aten.convolution.default" and index == _KERNEL:
        transposed, _, groups = user.args[6:9]
        return f"packed for a transposed convolution of {groups} groups" if transposed else "packed"
    return "packed"


def _kernel_of(constant: Any, user: Any, index: int) -> str:
    """For the kernel of a one-dimensional convolution, before ExecuTorch's passes: its convolution. Otherwise empty."""
    reader, _ = _reader(user, index)
    is_kernel = operator_of(reader) == "aten.convolution.default" and constant.meta["val"].dim() == _KERNEL_DIMENSIONS
    return f"of {user.name}" if is_kernel else ""


def _reader(user: Any, index: int) -> tuple[Any, int]:
    """The operator that reads a constant, and the index of the argument. In ExecuTorch, each reader of a quantized
    constant has its own `dequantize`."""
    if "dequantize" not in operator_of(user) or index != 0 or not user.users:
        return user, index
    reader = next(iter(user.users))
    return reader, next(place for place, argument in enumerate(reader.args) if user in _nodes(argument))


def _convert_at_borders(graph: Any) -> None:
    """Adds the conversions between float32 and int8 that ExecuTorch leaves out of a statically quantized delegate.

    It marks a `quantize` or `dequantize` as a part of a quantized operator, without conversion. It does so even if
    others read its result as float32, or if the operator is not in the delegate. Then nothing writes the float32
    numbers.
    """
    for node in list(graph.nodes):
        if not is_tagged_as_implicit_q_dq(node) or is_dynamic_qdq(node):
            continue
        if is_quant(node) and node.args[0].op == "placeholder":
            del node.meta[IS_IMPLICIT_Q_DQ_TAG]
        if is_dequant(node) and not all(map(_computes_with_integers, node.users)):
            with graph.inserting_after(node):
                implicit = graph.node_copy(node)
            del node.meta[IS_IMPLICIT_Q_DQ_TAG]  # keeps this one, as it may be a result with a name
            for reader in filter(_computes_with_integers, list(node.users)):
                reader.replace_input_with(node, implicit)
            if not implicit.users:
                graph.erase_node(implicit)


def _computes_with_integers(reader: Any) -> bool:
    """Whether a reader of a `dequantize` is a part of a quantized operator: a layer, or one that ends in a
    `quantize`."""
    users = [*reader.users]
    if operator_of(reader) == "aten.constant_pad_nd.default" and len(users) == 1 and operator_of(users[0]) in _LAYERS:
        return True  # ExecuTorch pads the integers
    if len(users) == 1 and not is_quant(users[0]):  # an activation
        users = [*users[0].users]
    ends = len(users) == 1 and is_quant(users[0]) and is_tagged_as_implicit_q_dq(users[0])
    return ends or operator_of(reader) in _PACKED


def _quantize_for_each_convolution(graph: Any) -> None:
    """Gives a dynamically quantized convolution its own operators that quantize its input, if others share them.

    XNNPACK computes wrong numbers for convolutions with kernels of different sizes that share these operators.
    """
    for node in list(graph.nodes):
        if (
            operator_of(node) == "aten.convolution.default"
            and is_dequant(node.args[0])
            and is_dynamic_qdq(node.args[0])
        ):
            readers = [reader for each in node.args[0].args[0].users for reader in each.users]
            if len({_geometry(reader) for reader in readers}) > 1:
                dequantize = _unshared(graph, node.args[0], node)
                _unshared(graph, dequantize.args[0], dequantize)


def _geometry(node: Any) -> str:
    """The size of a convolution's kernel, its stride, padding and so on; empty for other operators."""
    if operator_of(node) != "aten.convolution.default":
        return ""
    return f"{node.args[_KERNEL].meta['val'].shape[2:]} {node.args[_BIAS + 1 :]}"


def _unshared(graph: Any, node: Any, reader: Any) -> Any:
    """A node without other readers: the given one, or a copy of it."""
    if len(node.users) == 1:
        return node
    with graph.inserting_after(node):
        copy = graph.node_copy(node)
    reader.replace_input_with(node, copy)
    return copy
