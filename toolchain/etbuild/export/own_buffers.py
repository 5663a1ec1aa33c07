"""Writes what a method assigns to buffers of the exported module itself into these buffers.

`torch.export` does so after tracing. Torch 2.13 has two errors there. It finds the buffers by their positions, but also
counts buffers that are None or that the method registers, and so writes to the wrong inputs. It writes one buffer after
the other, so that a buffer that should get the old content of an earlier one gets its new content. See
`docs/upstream.md`. Here, the traced method itself ends with the writes.
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
    from etbuild.export.assignments import Assigned

_NO_HOOK = SimpleNamespace(remove=lambda: None)


@contextmanager
def writing_own_buffers(assigned: Assigned, look: Callable[[], None]) -> Iterator[None]:
    """Within this context, methods that `torch.export` traces end with writes to the buffers that they assign.

    Args:
        assigned: Gets the buffers that a method assigns.
        look: Is called after a method was traced. It may find and undo other changes of the method.
    """
    with (
        replaced(_trace, "_detect_attribute_assignment", partial(_while_traced, assigned, look)),
        replaced(_trace, "register_buffer_assignment_hook", lambda root, found: _NO_HOOK),
    ):
        yield


@contextmanager
def _while_traced(assigned: Assigned, look: Callable[[], None], root: torch.nn.Module) -> Iterator[None]:
    """Replaces torch's `_detect_attribute_assignment`, which restores only attributes that existed before."""
    calls: list[_TracedCall] = []

    def is_wrapper(module: torch.nn.Module) -> bool:
        return vars(module).get("_modules", {}).get("_export_root") is root

    def begin(module: torch.nn.Module, arguments: Any) -> None:
        if is_wrapper(module):
            calls.append(_TracedCall(root))

    def assign(owner: torch.nn.Module, name: str, value: Any) -> Any:
        is_own = calls and owner._buffers is root._buffers and isinstance(value, torch.Tensor)
        return calls[-1].assign(name, value) if is_own else None

    def end(module: torch.nn.Module, arguments: Any, result: Any) -> Any:
        return calls[-1].end(assigned, result) if is_wrapper(module) else None

    with ExitStack() as hooks:
        hooks.callback(nn_module.register_module_forward_pre_hook(begin).remove)
        hooks.callback(nn_module.register_module_buffer_registration_hook(assign).remove)
        hooks.callback(nn_module.register_module_forward_hook(end).remove)
        try:
            yield
            # Torch counts the buffers, and expects those that were there when the method began.
            buffers = vars(root)["_buffers"]
            buffers.clear()
            buffers.update(calls[-1].first)
        finally:
            look()


class _TracedCall:
    """A call of the exported module while it is traced.

    Attributes:
        first: The module's own buffers when the method began, without those that are None.
        values: What the method assigned to own buffers, in the order of the first assignments.
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
        """Notes what the method assigns to an own buffer.

        Returns:
            The tensor to assign: a copy, if a write of `value` at the end would write something else.
        """
        overwritten = {storage(self.first[earlier]) for earlier in self.values if earlier in self.first}
        if not isinstance(value, FakeTensor) or _is_input(value) or storage(value) in overwritten:
            value = value.clone()
        self.values[name] = value
        return value

    def end(self, assigned: Assigned, result: Any) -> Any:
        """Writes to the buffers that a program can keep, and notes all that the method assigned.

        Returns:
            The results of the method, with copies of those that are the old tensor of a buffer, or a view of it.
        """
        for path, child, before in self._children:
            for name, first in before.items():
                if _read_as(child, name) is not first:
                    assigned.lose(f"{path}.{name}", first, _read_as(child, name))
        assigned.buffers += [name for name, tensor, memory in self._memories if storage(tensor) != memory]
        last = self._root._buffers
        for name in {**self.first, **last}:
            if _read_as(self._root, name) is not self.first.get(name):
                self._note(assigned, name, _read_as(self._root, name))
        names = [name for name in self.values if name in assigned.written]
        written = {storage(self.first[name]) for name in names}
        if written:
            result = pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.clone() if storage(tensor) in written else tensor, result
            )
        for name in names:
            self.first[name].copy_(last[name])
        return result

    def _note(self, assigned: Assigned, name: str, last: Any) -> None:
        """Notes that the method assigned to a buffer, and whether a program can keep it."""
        if name not in self.first:
            assigned.attributes[name] = None
            return
        first = self.first[name]
        hidden = name in vars(self._root)  # `self.__dict__[name] = ...`: later calls read it, and not the buffer
        if hidden or name not in self.values or last is not self.values[name] or not same_shape(first, last):
            assigned.lose(name, first, last)
        else:
            assigned.written.add(name)
            if self._names[storage(first)] > 1:
                assigned.shared.add(name)
            if first.dtype != last.dtype:
                assigned.retyped[name] = (first.dtype, last.dtype)


def _is_input(value: torch.Tensor) -> bool:
    """Whether a tensor is an input of the graph or is not in the graph."""
    mode = proxy_tensor.get_proxy_mode()
    if mode is None:
        return False
    slot = proxy_tensor.get_proxy_slot(value, mode.tracer, None)
    return slot is None or slot.proxy.node.op == "placeholder"


def _read_as(module: torch.nn.Module, name: str) -> Any:
    """What a method reads as a buffer of a module: an attribute of this name comes first. None if there is none."""
    return vars(module).get(name, module._buffers.get(name))


def same_shape(first: torch.Tensor, last: torch.Tensor) -> bool:
    """Whether both tensors have the same fixed sizes. Dynamic sizes are not compared, because that would fix them."""
    return first.dim() == last.dim() and all(
        type(size) is int and size == own for own, size in zip(first.shape, last.shape, strict=True)
    )


def storage(tensor: torch.Tensor) -> int:
    """The number of a tensor's memory. Memory that is allocated later may have the same one."""
    return int(tensor.untyped_storage()._cdata)
