"""Corrects the layouts of images in XNNPACK's delegates.

XNNPACK computes convolutions in the format channels_last. A pass of ExecuTorch changes the layouts of their inputs and
results, with errors.

Limits: `layouts-of-dynamic-inputs`, `dynamic-layers-after-images`, `xnnpack-softmax`, `xnnpack-quantized-input`,
`layouts-of-quantized-results`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from executorch.backends.transforms.utils import is_param_node
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import ChannelsLastTaggedReshapePass
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_dynamic_qdq
from executorch.exir.dialects._ops import ops

from etbuild.patching import replaced

_TO_COPY = ops.edge.aten._to_copy.default


@contextlib.contextmanager
def corrected_layouts() -> Iterator[None]:
    """A context in which each operator reads the elements of its inputs in the right order."""
    layouts = ChannelsLastTaggedReshapePass
    # ExecuTorch leaves the result of a convolution in the format channels_last, and XNNPACK computes softmax over the
    # last dimension in memory. So softmax gets its input row by row.
    by_rows = {*layouts.memory_sensitive_ops_nchw, ops.edge.aten._softmax.default}
    is_nhwc = _of_quantized_input(layouts.is_nhwc_node, layouts._is_nhwc_tensor)
    is_nchw = _of_quantized_input(layouts.is_nchw_node, lambda value: not layouts._is_nhwc_tensor(value))
    to_nhwc = _before_quantizing(layouts.input_to_nhwc, torch.channels_last, is_nhwc)
    to_nchw = _before_quantizing(layouts.input_to_nchw, torch.contiguous_format, is_nchw)
    with (
        replaced(layouts, "memory_sensitive_ops_nchw", by_rows),
        replaced(layouts, "is_nhwc_node", staticmethod(is_nhwc)),
        replaced(layouts, "is_nchw_node", staticmethod(is_nchw)),
        replaced(layouts, "input_to_nhwc", to_nhwc),
        replaced(layouts, "input_to_nchw", to_nchw),
        replaced(layouts, "insert_copy_q_dq", _for_later_readers(layouts.insert_copy_q_dq)),
    ):
        yield


def _of_quantized_input(original: Callable[[Any], bool], has_form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Takes the layout of a quantized input from the input, and not from its first element.

    ExecuTorch looks at the first image of a batch, which is never in the format channels_last. For a number, it fails.
    """

    def is_of_form(node: Any) -> bool:
        source = node
        for _ in range(2):  # `dequantize` and `quantize`
            if not (is_dequant(node) and source.all_input_nodes):
                return original(node)
            source = source.args[0]
        return bool(has_form(source.meta["val"]) if source.op == "placeholder" else original(node))

    return is_of_form


def _before_quantizing(original: Any, form: torch.memory_format, has_form: Callable[[Any], bool]) -> Any:
    """Changes the layout of the input of a dynamically quantized layer right before it is quantized.

    For a convolution, ExecuTorch's pass changes the input of the whole delegate instead, and the operators in between
    do not know that. Then they read its elements in a wrong order, or the runtime refuses their shapes. For a linear
    layer, the pass separates the layer from the operators that quantize its input, and lowering fails.
    """

    def change(self: Any, graph_module: Any, node: Any, target: Any) -> None:
        is_dynamic = is_dequant(node) and is_dynamic_qdq(node)
        if not is_dynamic or has_form(node) or _is_input_of_form(self, node.args[0].args[0], form):
            original(self, graph_module, node, target)
        else:
            _lay_out_before_quantizing(self, graph_module.graph, node.args[0], form)

    return change


def _is_input_of_form(of_pass: Any, source: Any, form: torch.memory_format) -> bool:
    """Whether a node is a constant, or an input of the delegate that has this layout."""
    if source.op != "placeholder":
        return False
    is_of_form = source.meta["val"].is_contiguous(memory_format=form)
    return bool(is_of_form or is_param_node(of_pass.exported_program, source))


def _lay_out_before_quantizing(of_pass: Any, graph: Any, quantize: Any, form: torch.memory_format) -> None:
    """Gives a layout to the input of a `quantize`, and of the operators that choose its scale and its zero point."""
    source = quantize.args[0]
    ranges = {each.all_input_nodes[0] for each in quantize.all_input_nodes[1:3]}
    readers = (quantize, *sorted(ranges))
    copies = [user for user in source.users if user.target == _TO_COPY and user.kwargs.get("memory_format") == form]
    copy = next((each for each in copies if all(each < reader for reader in readers)), None)
    if copy is None:
        with graph.inserting_after(source):
            copy = graph.call_function(_TO_COPY, (source,), {"memory_format": form})
        of_pass.tag_node(copy)
    for reader in readers:
        reader.replace_input_with(source, copy)


def _for_later_readers(original: Any) -> Any:
    """Changes the layout of a statically quantized tensor only for the operators that need the change.

    ExecuTorch's pass changes it for all readers, even for those that it has planned with the other layout before, such
    as `exp` in the Mish of a convolution's result. Then they read the elements in a wrong order.
    """

    def insert_copy_q_dq(self: Any, graph_module: Any, before: Any, after: Any, copy: Any, q_params: Any) -> None:
        planned = [user for user in before.users if user is not copy and user < after]
        if planned:
            with graph_module.graph.inserting_after(before):
                unchanged = graph_module.graph.node_copy(before)
            for user in planned:
                user.replace_input_with(before, unchanged)
        copy.meta.setdefault("val", before.meta["val"])  # a result of the delegate keeps its layout here
        original(self, graph_module, before, after, copy, q_params)

    return insert_copy_q_dq
