"""Lets a traced method end with writes to the buffers of the exported module that it assigns.

`torch.export` adds such writes after tracing, and torch 2.13 has two errors there (`docs/upstream.md`). It finds the
buffers by their positions, but also counts buffers that are None or that the method registers. So it writes to wrong
inputs. And it writes one buffer after the other, so a buffer that should get the old content of an earlier one gets the
new content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import _trace
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import module as nn_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.patching import replaced

if TYPE_CHECKING:
    from etplugins.assignments.assigned import Assigned

_NO_HOOK = SimpleNamespace(remove=lambda: None)


@contextmanager
def writing_own_buffers(assigned: Assigned, on_traced: Callable[[], None]) -> Iterator[None]:
    """Within this context, methods that `torch.export` traces end with writes to the buffers that they assign to.

    Args:
        assigned: Collects the buffers that a method assigns to.
        on_traced: A function to call after a method was traced. It may find and undo other changes of the method.
    """
    with (
        replaced(_trace, "_detect_attribute_assignment", partial(_while_traced, assigned, on_traced)),
        replaced(_trace, "register_buffer_assignment_hook", lambda root, assigned_buffers: _NO_HOOK),
    ):
        yield


@contextmanager
def _while_traced(assigned: Assigned, on_traced: Callable[[], None], root: torch.nn.Module) -> Iterator[None]:
    """Replaces torch's `_detect_attribute_assignment`, which restores only attributes that existed before."""
    calls: list[_TracedCall] = []

    def is_wrapper(module: torch.nn.Module) -> bool:
        return vars(module).get("_modules", {}).get("_export_root") is root

    def begin(module: torch.nn.Module, arguments: Any) -> None:
        if is_wrapper(module):
            calls.append(_TracedCall(root))

    def assign(owner: torch.nn.Module, name: str, value: Any) -> Any:
        is_buffer_of_root = calls and owner._buffers is root._buffers and isinstance(value, torch.Tensor)
        return calls[-1].assign(name, value) if is_buffer_of_root else None

    def end(module: torch.nn.Module, arguments: Any, result: Any) -> Any:
        return calls[-1].end(assigned, result) if is_wrapper(module) else None

    with ExitStack() as hooks:
        hooks.callback(nn_module.register_module_forward_pre_hook(begin).remove)
        hooks.callback(nn_module.register_module_buffer_registration_hook(assign).remove)
        hooks.callback(nn_module.register_module_forward_hook(end).remove)
        try:
            yield
            # Torch counts the buffers, and expects those that existed before the call.
            buffers = vars(root)["_buffers"]
            buffers.clear()
            buffers.update(calls[-1].first)
        finally:
            on_traced()


class _TracedCall:
    """A call of the exported module while it is traced.

    Attributes:
        first: The buffers of the root from before the call, without those that are None.
        values: The tensors that the method assigned to buffers of the root, in the order of the first assignments.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self.first = {name: value for name, value in root._buffers.items() if value is not None}
        self.values: dict[str, torch.Tensor] = {}
        self._root = root
        self._children = [(name, child, dict(child._buffers)) for name, child in root.named_modules() if name]
        self._memories = [
            (name, tensor, storage(tensor))
            for name, tensor in (*root.named_buffers(), *root.named_parameters())
            if not is_traceable_wrapper_subclass(tensor)
        ]
        buffers = [tensor for module in root.modules() for tensor in module._buffers.values() if tensor is not None]
        self._names = Counter(storage(tensor) for tensor in buffers if not is_traceable_wrapper_subclass(tensor))

    def assign(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Notes an assignment of the method to a buffer of the root.

        Returns:
            The tensor to assign: `value`, or a copy if the writes at the end may change `value` before it is read.
        """
        overwritten = {storage(self.first[earlier]) for earlier in self.values if earlier in self.first}
        if not isinstance(value, FakeTensor) or _is_input(value) or storage(value) in overwritten:
            value = value.clone()
        self.values[name] = value
        return value

    def end(self, assigned: Assigned, result: Any) -> Any:
        """Writes to the buffers that a program can keep, and notes all assignments of the method.

        Returns:
            The results of the method. Copies a result that is a written buffer's old tensor, or a view of it.
        """
        for path, child, before in self._children:
            for name, first in before.items():
                if _read_as(child, name) is not first:
                    assigned.lose(f"{path}.{name}", first, _read_as(child, name))
        assigned.buffers += [name for name, tensor, memory in self._memories if storage(tensor) != memory]
        buffers = self._root._buffers
        for name in {**self.first, **buffers}:
            if _read_as(self._root, name) is not self.first.get(name):
                self._note(assigned, name, _read_as(self._root, name))
        names = [name for name in self.values if name in assigned.written]
        written = {storage(self.first[name]) for name in names}
        if written:
            result = pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.clone() if storage(tensor) in written else tensor, result
            )
        for name in names:
            self.first[name].copy_(buffers[name])
        return result

    def _note(self, assigned: Assigned, name: str, last: Any) -> None:
        """Notes that the method assigned to a buffer, and whether a program can keep it."""
        if name not in self.first:
            assigned.attributes[name] = None
            return
        first = self.first[name]
        hidden = name in vars(self._root)  # after `self.__dict__[name] = ...`, later calls do not read the buffer
        if hidden or name not in self.values or last is not self.values[name] or not same_shape(first, last):
            assigned.lose(name, first, last)
        else:
            assigned.written.add(name)
            if self._names[storage(first)] > 1:
                assigned.shared.add(name)
            if first.dtype != last.dtype:
                assigned.retyped[name] = (first.dtype, last.dtype)


def _is_input(value: torch.Tensor) -> bool:
    """Whether a tensor is an input of the graph, or is outside the graph."""
    mode = proxy_tensor.get_proxy_mode()
    if mode is None:
        return False
    slot = proxy_tensor.get_proxy_slot(value, mode.tracer, None)
    return slot is None or slot.proxy.node.op == "placeholder"


def _read_as(module: torch.nn.Module, name: str) -> Any:
    """The value that `module.name` has: an attribute in its dictionary, else the buffer; None without both."""
    return vars(module).get(name, module._buffers.get(name))


def same_shape(first: torch.Tensor, last: torch.Tensor) -> bool:
    """Whether both tensors have the same fixed sizes. Dynamic sizes are not compared, because that would fix them."""
    return first.dim() == last.dim() and all(
        type(size) is int and size == first_size for first_size, size in zip(first.shape, last.shape, strict=True)
    )


def storage(tensor: torch.Tensor) -> int:
    """The number of a tensor's memory. Once the memory is freed, other memory may get the same number."""
    return int(tensor.untyped_storage()._cdata)
