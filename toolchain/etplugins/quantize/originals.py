"""The weights of a module as they were before quantization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.multiprocessing.reductions import StorageWeakRef

from etbuild.model.module import named_tensors
from etbuild.model.tied_weights import addresses
from etbuild.surroundings.memory import give_back

_MOST_PENDING = 64 << 20  # bytes of layers that are quantized before weights are freed: each search takes time

Filter = Callable[[torch.nn.Module, str], bool]


@dataclass(frozen=True)
class _Original:
    """A tensor that may be quantized: its name, the addresses of its content, and a weak reference, which shows whether
    the content is still in use."""

    name: str
    addresses: range
    storage: StorageWeakRef


class Originals:
    """Frees original weights while their layers are quantized, and finds methods that still read them."""

    def __init__(self, module: torch.nn.Module, free: bool) -> None:
        """Remembers the weights.

        Args:
            module: The module before it is quantized.
            free: Whether `free` frees the weights that no layer holds any more. All tensors keep their names and
                shapes.
        """
        self._module = module
        self._originals = [
            _Original(name, extent, StorageWeakRef(tensor.untyped_storage()))
            for name, tensor in named_tensors(module).items()
            if (extent := addresses(tensor))
        ]
        # Tied weights have one entry.
        self._parameters = {id(x): (name, x) for name, x in module.named_parameters()} if free else {}
        self._pending = 0  # bytes of the layers that were chosen since weights were freed
        self._freed: list[_Original] = []

    def watched(self, chosen: Filter) -> Filter:
        """A filter for torchao that also frees weights: torchao quantizes a layer before it asks for the next one."""

        def watching(layer: torch.nn.Module, name: str) -> bool:
            is_chosen = chosen(layer, name)
            if is_chosen:
                if self._pending > _MOST_PENDING:
                    self.free()
                self._pending += sum(tensor.nbytes for tensor in layer.parameters(recurse=False))
            return is_chosen

        return watching

    def free(self) -> None:
        """Frees the weights that no layer holds any more. Does nothing if the object was made without `free`."""
        self._pending = 0
        parameters = {id(x) for layer in self._module.modules() for x in layer._parameters.values()}
        for key in self._parameters.keys() - parameters:
            name, parameter = self._parameters.pop(key)
            # The module gets this parameter back, so its shape stays. All its elements share the memory of one number.
            parameter.data = parameter.data.new_zeros(1).expand(parameter.shape)
            self._freed.append(_Original(name, addresses(parameter), StorageWeakRef(parameter.untyped_storage())))
        give_back()

    def leave(self) -> None:
        """Forgets the weights that the quantized module still holds. Call it while the module is quantized."""
        remaining = {addresses(tensor) for tensor in named_tensors(self._module).values()}
        self._originals = [
            original for original in self._originals if original.addresses not in remaining
        ] + self._freed

    def read_by(self, program: ExportedProgram) -> list[str]:
        """The names of the weights that an exported method still reads."""
        tensors = {**program.state_dict, **program.constants}.values()
        read_addresses = [addresses(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
        # A later tensor may have the address of a freed one.
        alive = [original for original in self._originals if not original.storage.expired()]
        return [
            original.name
            for original in alive
            if any(_overlap(original.addresses, extent) for extent in read_addresses)
        ]


def _overlap(first: range, second: range) -> bool:
    return first.start < second.stop and second.start < first.stop
