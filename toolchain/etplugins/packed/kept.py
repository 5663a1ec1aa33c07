"""The packed weights of a module whose integers the program keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from etbuild.inputs.step_context import Spill
from etbuild.model.spilled_tensors import unused
from etbuild.model.tensor_files import PackedWeight
from etplugins.packed.integers import Integers

if TYPE_CHECKING:
    from torchao.core.config import AOBaseConfig

_MOST_NAMES = 3


@dataclass
class KeptIntegers:
    """The packed weights that methods keep as integers.

    Attributes:
        kinds: The kind of the layer of each weight that a method asks to keep, by the weight's name.
        unread: The names of the weights that no method reads as floats.
        integers: The integers of the kept weights, by name.
        dequantized: The reasons why other weights were dequantized, by name.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    unread: Collection[str] = ()
    integers: dict[str, Integers] = field(default_factory=dict)
    dequantized: dict[str, str] = field(default_factory=dict)

    def tensor(self, names: Collection[str], content: PackedWeight, dtype: torch.dtype, spill: Spill) -> torch.Tensor:
        """The content of a packed weight as floats. Returns zeros that take no memory if no method needs floats.

        Args:
            names: All names of the weight in the module.
            content: The integers.
            dtype: The dtype of the weight in the module.
            spill: As in `StepContext`.
        """
        assert isinstance(content, Integers)
        reasons = {name: content.misfit(self.kinds[name]) for name in names if name in self.kinds}
        kept_names = [name for name, reason in reasons.items() if reason is None]
        self.dequantized.update({name: reason for name, reason in reasons.items() if reason is not None})
        is_unread = all(name in kept_names and name in self.unread for name in names)
        floats = unused(content.values.shape, dtype) if is_unread else content.dequantized()
        if kept_names:
            self.integers.update(dict.fromkeys(kept_names, content.spilled(lambda part: spill(part, lambda: part))))
        return floats

    def config(self, names: Mapping[int, str]) -> AOBaseConfig:
        """A configuration of torchao that gives layers their integers. `names` has the name of the weight of each
        layer, by the layer's `id`."""
        from etplugins.packed.layers import KeepIntegers

        return KeepIntegers(self.integers, names)

    def lines(self) -> Iterator[str]:
        """Lines for users about kept and dequantized weights."""
        if not self.integers and not self.dequantized:
            return
        yield f"{len(self.integers)} packed weights keep their integers, and {len(self.dequantized)} are dequantized"
        reasons: dict[str, list[str]] = {}
        for name, reason in self.dequantized.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            yield f"dequantized because {reason}: {', '.join(f'`{name}`' for name in names[:_MOST_NAMES])}{more}"


_of_modules: WeakKeyDictionary[torch.nn.Module, KeptIntegers] = WeakKeyDictionary()


def keep(module: torch.nn.Module, kinds: Mapping[str, str], unread: Collection[str]) -> KeptIntegers:
    """Lets layers of a module keep integers. The arguments are as in `KeptIntegers`."""
    kept = _of_modules[module] = KeptIntegers(kinds, unread)
    return kept


def of(module: torch.nn.Module) -> KeptIntegers:
    """The integers that layers of a module keep."""
    return _of_modules.get(module) or KeptIntegers()
