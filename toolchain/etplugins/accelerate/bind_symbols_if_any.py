"""Searches the values of nodes for symbols only if there are symbols to find.

When a method is exported, loaded or decomposed, torch looks into each tensor for sizes that depend on data. It makes a
path for each dimension, and asks whether it is a symbol that has no path yet. Most methods have no such symbol.
"""

from __future__ import annotations

from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import symbolic_shapes

from etbuild.patching import replacing

_find = symbolic_shapes._free_unbacked_symbols_with_path


@replacing(symbolic_shapes, "_free_unbacked_symbols_with_path")
def bind_symbols_if_any(value: object, path: Any, *arguments: Any, **options: Any) -> dict[Any, Any]:
    """The paths of the symbols in `pending` that a value has."""
    if type(value) is FakeTensor and not arguments and not options.get("pending"):
        return {}
    found: dict[Any, Any] = _find(value, path, *arguments, **options)
    return found
