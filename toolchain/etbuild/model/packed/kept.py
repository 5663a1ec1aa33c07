"""The packed weights of a module whose integers the program keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from etbuild.model.packed.integers import Integers
from etbuild.model.spilled_tensors import unused

_SHOWN = 3


@dataclass
class Kept:
    """Which packed weights are kept as integers, and those that were.

    Attributes:
        wanted: For each name of a weight that a method wants to keep, the kind of its layer.
        only: The names of the weights that no method reads as floats.
        integers: The integers of those that are kept, by name.
        dequantized: Why the others were dequantized, by name.
    """

    wanted: Mapping[str, str] = field(default_factory=dict)
    only: Collection[str] = ()
    integers: dict[str, Integers] = field(default_factory=dict)
    dequantized: dict[str, str] = field(default_factory=dict)

    def tensor(
        self,
        names: Collection[str],
        content: Integers,
        dtype: torch.dtype,
        spill: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """The float content of a packed weight; zeros if nothing needs it, which take no memory.

        Args:
            names: All names of the weight in the module.
            content: The integers.
            dtype: The dtype of the weight in the module.
            spill: Returns a tensor with its content in a file, if it is large.
        """
        reasons = {name: content.misfit(self.wanted[name]) for name in names if name in self.wanted}
        keeping = [name for name, reason in reasons.items() if reason is None]
        self.dequantized.update({name: reason for name, reason in reasons.items() if reason is not None})
        needless = all(name in keeping and name in self.only for name in names)
        floats = unused(content.values.shape, dtype) if needless else content.dequantized()
        if keeping:
            self.integers.update(dict.fromkeys(keeping, content.spilled(spill)))
        return floats

    def lines(self) -> Iterator[str]:
        """What happened to the packed weights, for users."""
        if not self.integers and not self.dequantized:
            return
        yield f"{len(self.integers)} packed weights keep their integers, and {len(self.dequantized)} are dequantized"
        reasons: dict[str, list[str]] = {}
        for name, reason in self.dequantized.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"dequantized because {reason}: {', '.join(f'`{name}`' for name in names[:_SHOWN])}{more}"


_of_modules: WeakKeyDictionary[torch.nn.Module, Kept] = WeakKeyDictionary()


def put(module: torch.nn.Module, kept: Kept) -> None:
    """Remembers the integers of a module's weights."""
    _of_modules[module] = kept


def of(module: torch.nn.Module) -> Kept:
    """What `put` remembered."""
    return _of_modules.get(module) or Kept()
