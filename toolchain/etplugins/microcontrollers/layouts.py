"""Gives convolutions of two dimensions the memory format that CMSIS-NN's kernels need: channels last.

ExecuTorch's quantizer for Cortex-M leaves other convolutions in floating-point numbers, unless the model itself
converts its input. Here the input of the first convolution is copied into this format, and PyTorch computes the formats
of what follows from it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from etplugins.edges.writes import check_writes, may_view, writes

_ATEN = torch.ops.aten
_CONVOLUTIONS = (_ATEN.conv2d.default, _ATEN.conv2d.padding, _ATEN.conv_transpose2d.input, _ATEN.convolution.default)


def channels_last(model: GraphModule) -> GraphModule:
    """Changes the graph of a method so that its convolutions compute in this format. Outputs keep theirs."""
    values = [node.meta["val"] for node in model.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    mode = detect_fake_mode(values)
    if mode is not None:
        with mode:
            _Layouts(model, mode).change()
        model.graph.lint()
        model.recompile()
    return model


class _Layouts:
    """The formats of the values in a graph, as far as they are known."""

    def __init__(self, model: GraphModule, mode: Any) -> None:
        self._model, self._mode = model, mode
        self._before = {node: node.meta.get("val") for node in model.graph.nodes}
        self._copies: dict[tuple[Node, torch.memory_format], Node] = {}
        self._changed: set[Node] = set()
        self._separated: list[tuple[Node, Node]] = []

    def change(self) -> None:
        """Inserts copies before convolutions, and wherever a row-major value is needed."""
        from executorch.backends.cortex_m.passes.passes_utils import is_channels_last

        for node in [*self._model.graph.nodes]:
            if node.op == "output":
                self._keep_outputs(node)
            elif node.op == "call_function" and self._changed.intersection(node.all_input_nodes):
                self._compute(node)
            value = node.meta.get("val")
            if (
                node.target in _CONVOLUTIONS
                and isinstance(value, torch.Tensor)
                and value.dim() == 4
                and not is_channels_last(value)
            ):
                node.update_arg(0, self._copied(node.args[0], torch.channels_last, node))
                self._compute(node)
            if writes(node):
                self._copies.clear()  # a copy from before does not have what was written
        for node, source in self._separated:
            check_writes(node, source)

    def _compute(self, node: Node) -> None:
        """Computes the format of an operator's result. An operator that does not take its input gets a copy."""
        viewed = self._viewed(node)
        try:
            value = self._called(node)
        except RuntimeError:  # a view that the format does not allow
            for index, source in enumerate(node.args):
                if isinstance(source, Node) and source in self._changed:
                    node.update_arg(index, self._copied(source, torch.contiguous_format, node))
            value = self._called(node)
        node.meta["val"] = value
        self._changed.add(node)
        if viewed is not None and not _share(value, viewed.meta.get("val")):
            self._separated.append((node, viewed))

    def _viewed(self, node: Node) -> Node | None:
        """The value that an operator makes a view of, while this value has its first format."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not may_view(node) or writes(node):
            return None
        old = self._before.get(source)
        value = node.target(*map_arg(node.args, self._first), **map_arg(node.kwargs, self._first))
        return source if _share(value, old) else None

    def _first(self, node: Node) -> Any:
        value = self._before.get(node)
        return self._value(node) if value is None else value

    def _called(self, node: Node) -> Any:
        return node.target(*map_arg(node.args, self._value), **map_arg(node.kwargs, self._value))

    def _value(self, node: Node) -> Any:
        value = node.meta.get("val")
        if value is not None or node.op != "get_attr":
            return value
        found: Any = self._model
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return self._mode.from_tensor(found, static_shapes=True)

    def _copied(self, source: Any, form: torch.memory_format, before: Node) -> Node:
        """A copy of a value in a format, as the value is before an operator: others may have written to it."""
        if (source, form) not in self._copies:
            with self._model.graph.inserting_before(before):
                copy = self._model.graph.call_function(_ATEN.clone.default, (source,), {"memory_format": form})
            place = source if before.op == "output" else before
            copy.meta = {key: each for key, each in place.meta.items() if key in ("nn_module_stack", "stack_trace")}
            copy.meta["val"] = self._called(copy)
            self._copies[source, form] = copy
            self._changed.add(copy)
        return self._copies[source, form]

    def _keep_outputs(self, output: Node) -> None:
        """Copies outputs whose format has changed: an application reads them in the format of the model's outputs."""

        def kept(node: Node) -> Node:
            before, value = self._before.get(node), node.meta.get("val")
            if node not in self._changed or not isinstance(before, torch.Tensor) or not before.is_contiguous():
                return node
            if before.dim_order() == value.dim_order():
                return node
            return self._copied(node, torch.contiguous_format, output)

        output.args = map_arg(output.args, kept)


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors have the same memory."""
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and one.untyped_storage()._cdata == other.untyped_storage()._cdata
