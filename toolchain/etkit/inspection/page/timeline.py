"""Draws the planned memory of a method over the time of a call, as SVG."""

from __future__ import annotations

import html
from typing import Any

from etbuild.errors import counted
from etkit.tables import size

_WIDTH, _HEIGHT = 1000, 220  # the size of an arena's drawing, in units of SVG
_KINDS = {"input": "input", "state": "state"}


def svg(plan: dict[str, Any]) -> Any:
    """A drawing for each arena: instructions to the right, addresses upward.

    Args:
        plan: A `MemoryPlan` whose strings have visible characters only.

    Returns:
        Escaped markup; empty if no memory is planned.
    """
    from markupsafe import Markup

    arenas: dict[int, list[dict[str, Any]]] = {}
    for tensor in plan["tensors"]:
        arenas.setdefault(tensor["arena"], []).append(tensor)
    drawn = [_arena(number, tensors, max(1, plan["instructions"])) for number, tensors in sorted(arenas.items())]
    return Markup("".join(drawn))


def _arena(number: int, tensors: list[dict[str, Any]], instructions: int) -> str:
    top = max(1, *(tensor["offset"] + tensor["bytes"] for tensor in tensors))
    busy, when = _peak(tensors)
    label = (
        f"arena {number}: {size(top)}, {counted(len(tensors), 'tensor')}; "
        f"the most in use is {size(busy)}, at instruction {when}"
    )
    boxes = "".join(_box(tensor, top, instructions) for tensor in tensors)
    return (
        f'<figure><svg class="timeline" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{boxes}</svg><figcaption>{label}</figcaption></figure>'
    )


def _peak(tensors: list[dict[str, Any]]) -> tuple[int, int]:
    """The largest number of bytes in use at a time, and the first instruction with this number."""
    changes: dict[int, int] = {}
    for tensor in tensors:
        changes[tensor["first"]] = changes.get(tensor["first"], 0) + tensor["bytes"]
        changes[tensor["last"] + 1] = changes.get(tensor["last"] + 1, 0) - tensor["bytes"]
    busy = most = when = 0
    for time, change in sorted(changes.items()):
        busy += change
        if busy > most:
            most, when = busy, time
    return most, when


def _box(tensor: dict[str, Any], top: int, instructions: int) -> str:
    left, right = tensor["first"] / instructions, (tensor["last"] + 1) / instructions
    low, high = tensor["offset"] / top, (tensor["offset"] + tensor["bytes"]) / top
    kind = _KINDS.get(tensor["of"], "value")
    title = f"{tensor['of']}: {size(tensor['bytes'])}, instructions {tensor['first']} to {tensor['last']}"
    return (
        f'<rect class="{kind}" x="{left * _WIDTH:.1f}" y="{(1 - high) * _HEIGHT:.1f}" '
        f'width="{max(0.5, (right - left) * _WIDTH):.1f}" height="{max(0.3, (high - low) * _HEIGHT):.1f}">'
        f"<title>{html.escape(title)}</title></rect>"
    )
