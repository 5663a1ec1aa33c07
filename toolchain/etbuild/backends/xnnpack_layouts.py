"""Corrects the layouts of images in XNNPACK's delegates.

XNNPACK computes convolutions in the format channels_last. A pass of ExecuTorch changes the layouts of their inputs and
results, and gets some wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from etbuild.patching import replaced

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def corrected_layouts() -> Iterator[None]:
    """A context in which each operator reads the elements of its inputs in the right order."""
    with (
        _layout_of_softmax(),
        _layouts_of_quantized_inputs(),
        _layouts_of_dynamic_inputs(),
        _layouts_of_quantized_outputs(),
    ):
        yield


@contextlib.contextmanager
def _layout_of_softmax() -> Iterator[None]:
    """Gives softmax its input row by row.

    ExecuTorch leaves the result of a convolution in the format channels_last, and XNNPACK computes softmax over what is
    last in memory.
    """
    from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import ChannelsLastTaggedReshapePass
    from executorch.exir.dialects._ops import ops

    needing = {*ChannelsLastTaggedReshapePass.memory_sensitive_ops_nchw, ops.edge.aten._softmax.default}
    with replaced(ChannelsLastTaggedReshapePass, "memory_sensitive_ops_nchw", needing):
        yield


@contextlib.contextmanager
def _layouts_of_quantized_inputs() -> Iterator[None]:
    """Takes the layout of a quantized input from the input, and not from the first of its elements.

    ExecuTorch looks at that in place of a batch of images, which is then never in the format channels_last. For a
    number it fails.
    """
    from executorch.backends.xnnpack._passes import channels_last_tagged_reshape_pass as layouts

    of_pass = layouts.ChannelsLastTaggedReshapePass
    is_nhwc, is_nchw = of_pass.is_nhwc_node, of_pass.is_nchw_node

    def quantized_input(node: Any) -> torch.Tensor | None:
        source = node
        for _ in range(2):  # `dequantize` and `quantize`
            if not (layouts.is_dequant(node) and source.all_input_nodes):
                return None
            source = source.args[0]
        value: torch.Tensor | None = source.meta["val"] if source.op == "placeholder" else None
        return value

    def is_nhwc_node(node: Any) -> bool:
        value = quantized_input(node)
        return bool(is_nhwc(node) if value is None else of_pass._is_nhwc_tensor(value))

    def is_nchw_node(node: Any) -> bool:
        value = quantized_input(node)
        return bool(is_nchw(node) if value is None else not of_pass._is_nhwc_tensor(value))

    with (
        replaced(of_pass, "is_nhwc_node", staticmethod(is_nhwc_node)),
        replaced(of_pass, "is_nchw_node", staticmethod(is_nchw_node)),
    ):
        yield


@contextlib.contextmanager
def _layouts_of_dynamic_inputs() -> Iterator[None]:
    """Changes the layout of the input of a dynamically quantized layer right before it is quantized.

    For a convolution, ExecuTorch's pass changes the input of the whole delegate instead, and the operators in between
    do not know that. They then read its elements in a wrong order, or the runtime refuses their shapes. For a linear
    layer it separates the layer from what quantizes its input, and lowering fails.
    """
    import torch
    from executorch.backends.xnnpack._passes import channels_last_tagged_reshape_pass as layouts

    of_pass = layouts.ChannelsLastTaggedReshapePass

    def of(original: Any, form: torch.memory_format, has_form: Callable[[Any], bool]) -> Any:
        def change(self: Any, graph_module: Any, node: Any, target: Any) -> None:
            is_dynamic = layouts.is_dequant(node) and layouts.is_dynamic_qdq(node)
            if not is_dynamic or has_form(node) or _is_input_of_form(self, node.args[0].args[0], form):
                original(self, graph_module, node, target)
            else:
                _lay_out_before_quantizing(self, graph_module.graph, node.args[0], form)

        return change

    nhwc = of(of_pass.input_to_nhwc, torch.channels_last, of_pass.is_nhwc_node)
    nchw = of(of_pass.input_to_nchw, torch.contiguous_format, of_pass.is_nchw_node)
    with replaced(of_pass, "input_to_nhwc", nhwc), replaced(of_pass, "input_to_nchw", nchw):
        yield


def _is_input_of_form(of_pass: Any, source: Any, form: torch.memory_format) -> bool:
    """Whether a node is a constant, or an input of the delegate that has this layout."""
    from executorch.backends.transforms.utils import is_param_node

    if source.op != "placeholder":
        return False
    is_of_form = source.meta["val"].is_contiguous(memory_format=form)
    return bool(is_of_form or is_param_node(of_pass.exported_program, source))


def _lay_out_before_quantizing(of_pass: Any, graph: Any, quantize: Any, form: torch.memory_format) -> None:
    """Gives a `quantize`, and what chooses its scale and its zero point, their input in a layout."""
    from executorch.exir.dialects._ops import ops

    source, to_copy = quantize.args[0], ops.edge.aten._to_copy.default
    ranges = {each.all_input_nodes[0] for each in quantize.all_input_nodes[1:3]}
    readers = (quantize, *sorted(ranges))
    made = [user for user in source.users if user.target == to_copy and user.kwargs.get("memory_format") == form]
    made = [user for user in made if all(user < reader for reader in readers)]
    if made:
        copy = made[0]
    else:
        with graph.inserting_after(source):
            copy = graph.call_function(to_copy, (source,), {"memory_format": form})
        of_pass.tag_node(copy)
    for reader in readers:
        reader.replace_input_with(source, copy)


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
        copy.meta.setdefault("val", before.meta["val"])  # a result of the delegate has the layout that it has here
        original(self, graph_module, before, after, copy, q_params)

    with replaced(ChannelsLastTaggedReshapePass, "insert_copy_q_dq", insert_copy_q_dq):
        yield
