"""Large weights that methods hold in floats, although the manifest quantizes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from torch.export import ExportedProgram

_LARGE = 1 << 20  # bytes
_SHOWN = 20


def lines(programs: Mapping[str, ExportedProgram], quantized: Collection[str]) -> Iterator[str]:
    """What is left in floats, for users: one line for all methods.

    Args:
        programs: The exported methods, by name.
        quantized: The names of the methods that the manifest quantizes.
    """
    left: dict[str, int] = {}
    for name in quantized:
        program = programs[name]
        for parameter in program.graph_signature.parameters:
            tensor = program.state_dict[parameter]
            size = tensor.numel() * tensor.element_size()
            if tensor.is_floating_point() and tensor.dim() > 1 and size > _LARGE and not _is_scale(parameter):
                left[parameter] = size
    if left:
        total = sum(left.values()) / 1e6
        weights = "weight" if len(left) == 1 else "weights"
        yield f"`quantize` leaves {len(left)} {weights} of more than 1 MB in floats, {total:.1f} MB: {_patterns(left)}"


def _is_scale(name: str) -> bool:
    """Whether a parameter is a part of a quantized weight. torchao calls the tensors of a weight `original0`, and so
    on."""
    return ".parametrizations." in name


def _patterns(names: Collection[str]) -> str:
    """Names of weights. Those of several layers are one pattern with their number."""
    found = Counter(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in sorted(names))
    shown = [f"`{pattern}`{f' ({count})' if count > 1 else ''}" for pattern, count in found.items()]
    more = len(shown) - _SHOWN
    return ", ".join([*shown[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])
