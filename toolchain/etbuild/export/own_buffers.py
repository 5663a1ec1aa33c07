"""Corrects how `torch.export` keeps what a method assigns to buffers of the exported module itself.

`torch.export` writes such values into the buffers when the method ends. Torch 2.13 has two errors there. It finds the
buffers by their positions, but also counts buffers that are None or that the method registers, and so writes to the
wrong inputs. It writes one buffer after the other, so that a buffer that should get the old content of an earlier one
gets its new content. See `docs/upstream.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import _trace
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.patching import replaced

_REGISTER = _trace.register_buffer_assignment_hook


@dataclass
class OwnBuffers:
    """The buffers of the module itself while one method is traced.

    Attributes:
        kept: Names of buffers that the exported method writes to when it ends.
        retyped: Names in `kept` that got a tensor of another dtype: the buffer's dtype and the new one.
        reshaped: Names in `lost` that got a tensor of another shape: the buffer's shape and the new one.
        lost: Names of buffers that got a value which a program cannot keep.
        moved: Names of buffers and parameters of all modules whose memory was replaced: `self.state.data = ...`.
    """

    kept: set[str] = field(default_factory=set)
    retyped: dict[str, tuple[torch.dtype, torch.dtype]] = field(default_factory=dict)
    reshaped: dict[str, tuple[torch.Size, torch.Size]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    _first: dict[str, torch.Tensor] = field(default_factory=dict)
    _last: dict[str, Any] = field(default_factory=dict)
    _nodes: dict[str, str] = field(default_factory=dict)
    _assigned: dict[str, Any] = field(default_factory=dict)
    _of_torch: dict[str, str] = field(default_factory=dict)
    _places: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)

    def was_there(self, name: str) -> bool:
        """Whether the buffer was a tensor when the method began."""
        return name in self._first

    def begin(self, root: torch.nn.Module) -> None:
        """Records the buffers when the method begins."""
        self._first = {name: value for name, value in root._buffers.items() if value is not None}
        self._last = {}
        self._places = [
            (name, tensor, storage(tensor))
            for name, tensor in (*root.named_buffers(), *root.named_parameters())
            if not is_traceable_wrapper_subclass(tensor)
        ]

    def end(self, root: torch.nn.Module) -> None:
        """Records the buffers when the method ends."""
        self._last = dict(root._buffers)
        self.moved = [name for name, tensor, place in self._places if storage(tensor) != place]

    def assign(self, root: torch.nn.Module, owner: torch.nn.Module, name: str, value: Any) -> Any:
        """Hook for the assignment to a buffer.

        Args:
            root: The exported module.
            owner: The module whose buffer is assigned.
            name: The buffer's name.
            value: What is assigned.

        Returns:
            The tensor to assign instead: `value`, or a copy if torch cannot write `value` into the buffer correctly at
            the end. None, for no change, if the buffer is not one of `root` or if `value` is not a tensor.
        """
        if owner._buffers is not root._buffers or not isinstance(value, torch.Tensor):
            return None
        if not isinstance(value, FakeTensor) or _is_input(value) or self._is_overwritten(value):
            value = value.clone()
        self._assigned[name] = value
        return value

    def _is_overwritten(self, value: torch.Tensor) -> bool:
        """Whether a tensor has the old content of a buffer that torch writes to earlier."""
        own = storage(value)
        return any(storage(self._first[name]) == own for name in self._nodes if name in self._first)

    def register(self, root: torch.nn.Module, assigned: dict[str, str]) -> SimpleNamespace:
        """Replaces torch's `register_buffer_assignment_hook`, which collects assignments to the root's buffers.

        Args:
            root: The exported module.
            assigned: Torch's mapping of buffers to the nodes that were assigned to them. `finish` fills it.

        Returns:
            A handle that removes the hooks.
        """
        self._of_torch = assigned
        handles = ExitStack()
        handles.callback(nn_module.register_module_buffer_registration_hook(partial(self.assign, root)).remove)
        handles.callback(_REGISTER(root, self._nodes).remove)
        return SimpleNamespace(remove=handles.close)

    def finish(self, root: torch.nn.Module) -> None:
        """Decides which assignments torch keeps, and restores the buffers in the order that torch expects."""
        changed = [name for name, value in self._last.items() if value is not self._first.get(name)]
        changed += [name for name in self._first if name not in self._last]
        self.kept = {name for name in changed if self._can_keep(name)}
        self.lost = [name for name in changed if name not in self.kept]
        for name in self.lost:
            first, last = self._first.get(name), self._last.get(name)
            if first is not None and last is not None and not _same_shape(first, last):
                self.reshaped[name] = (first.shape, last.shape)
        for name, node in self._nodes.items():
            if name in self.kept:
                self._of_torch[name] = node
                kinds = (self._first[name].dtype, self._last[name].dtype)
                if kinds[0] != kinds[1]:
                    self.retyped[name] = kinds
        buffers = vars(root)["_buffers"]
        buffers.clear()
        buffers.update(self._first)

    def _can_keep(self, name: str) -> bool:
        first, last = self._first.get(name), self._last.get(name)
        if first is None or last is None or last is not self._assigned.get(name):
            return False
        return _same_shape(first, last)


@contextmanager
def following_own_buffers(look: Callable[[], None]) -> Iterator[OwnBuffers]:
    """Within this context, `torch.export` writes to the right buffers of the exported module.

    Args:
        look: Is called after a method was traced. It may find and undo other changes of the method.
    """
    own = OwnBuffers()
    with (
        replaced(_trace, "_detect_attribute_assignment", partial(_while_traced, own, look)),
        replaced(_trace, "register_buffer_assignment_hook", own.register),
    ):
        yield own


@contextmanager
def _while_traced(own: OwnBuffers, look: Callable[[], None], root: torch.nn.Module) -> Iterator[None]:
    """Replaces torch's `_detect_attribute_assignment`, which restores only attributes that existed before."""

    def is_wrapper(module: torch.nn.Module) -> bool:
        return vars(module).get("_modules", {}).get("_export_root") is root

    with ExitStack() as hooks:
        before = nn_module.register_module_forward_pre_hook(
            lambda module, _: own.begin(root) if is_wrapper(module) else None
        )
        after = nn_module.register_module_forward_hook(
            lambda module, _, __: own.end(root) if is_wrapper(module) else None
        )
        hooks.callback(before.remove)
        hooks.callback(after.remove)
        try:
            yield
            own.finish(root)
        finally:
            look()


def _is_input(value: torch.Tensor) -> bool:
    """Whether a tensor is an input of the graph or is not in the graph. Torch writes neither kind into a buffer."""
    mode = proxy_tensor.get_proxy_mode()
    if mode is None:
        return False
    slot = proxy_tensor.get_proxy_slot(value, mode.tracer, None)
    return slot is None or slot.proxy.node.op == "placeholder"


def _same_shape(first: torch.Tensor, last: torch.Tensor) -> bool:
    """Whether both tensors have the same fixed sizes. Dynamic sizes are not compared, because that would fix them."""
    return first.dim() == last.dim() and all(
        type(size) is int and size == own for own, size in zip(first.shape, last.shape, strict=True)
    )


def storage(tensor: torch.Tensor) -> int:
    """The number of a tensor's memory. Memory that is allocated later may have the same one."""
    return int(tensor.untyped_storage()._cdata)
