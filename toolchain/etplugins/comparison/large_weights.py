"""Weights of a model in eager PyTorch that are in memory only while an operator reads them.

A packed checkpoint takes an eighth of the memory of its weights in float32, and so does a quantized program. So a large
weight is read from its file again for each operator, and dequantized again.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_SMALL = 1 << 20  # bytes: a smaller weight stays in memory
_KEPT = 1 << 25  # bytes: so much of a model stays in memory, because reading weights again takes time


class LargeWeights(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Takes large weights, and gives their content to operators in its context.

    Whatever reads a taken weight in another way ends the process: its memory allows no access. So a weight is never
    read as something else than its content.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._again: dict[int, Callable[[], torch.Tensor]] = {}  # by the address of the taken tensor
        self._taken: list[torch.Tensor] = []  # keeps the addresses from being used again
        self._kept = 0

    def __bool__(self) -> bool:
        """Whether any weight was taken."""
        return bool(self._taken)

    def take(self, tensor: torch.Tensor, again: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Returns a tensor without memory in place of a weight, or the weight itself if it is small.

        Args:
            tensor: The weight.
            again: Makes it again.
        """
        if tensor.nbytes < _SMALL or self._kept + tensor.nbytes <= _KEPT:
            self._kept += tensor.nbytes
            return tensor
        mapping = mmap.mmap(-1, tensor.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing can write to the tensor, and nothing shall
            taken = torch.frombuffer(mapping, dtype=tensor.dtype).view(tensor.shape)
        self._again[taken.data_ptr()] = again
        self._taken.append(taken)
        return taken

    def give_all(self, module: torch.nn.Module) -> None:
        """Puts the content of the taken weights into a module, which then is as any other."""
        made: dict[int, torch.Tensor] = {}
        for tensor in (*module.parameters(), *module.buffers()):
            if _address(tensor) in self._again:
                tensor.data = self._content(tensor, made)

    def _content(self, tensor: torch.Tensor, made: dict[int, torch.Tensor]) -> torch.Tensor:
        """The content of a view of a taken weight. `made` has weights that were made already, by their addresses."""
        address = _address(tensor)
        if address not in made:
            made[address] = self._again[address]().contiguous()
        storage, offset = made[address].untyped_storage(), made[address].storage_offset()
        start = offset * made[address].itemsize // tensor.itemsize + tensor.storage_offset()
        return tensor.new_empty(0).set_(storage, start, tensor.size(), tensor.stride())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operator with the content of taken weights. A view of a taken weight has no content either."""
        given, made = {**dict(enumerate(args)), **(kwargs or {})}, dict[int, torch.Tensor]()
        for name in _read_arguments(func, given):

            def content(value: object) -> object:
                is_taken = isinstance(value, torch.Tensor) and _address(value) in self._again
                return self._content(value, made) if is_taken else value

            given[name] = pytree.tree_map_only(torch.Tensor, content, given[name])
        positional = [given.pop(index) for index in range(len(args))]
        return func(*positional, **given)


def _read_arguments(func: Any, given: Mapping[Any, Any]) -> Iterator[Any]:
    """The arguments of a call whose content the operator reads, by position or name. It does not if it returns views of
    an argument."""
    schema = getattr(func, "_schema", None)
    for index, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is None:
            yield from (name for name in (index, argument.name) if name in given)


def _address(tensor: torch.Tensor) -> int:
    """The address of the memory of a tensor; 0 for one without memory of its own, as classes of tensors have."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return tensor.untyped_storage().data_ptr() if plain else 0
