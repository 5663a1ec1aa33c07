"""Brings equal partitioners of different methods to the same index.

ExecuTorch co-lowers partitioner lists by index: the first of every method together, then the second, and so on. Given
`{prefill: [A, X], decode: [X]}` it would call backend X once for each method, and the two would share no weights.
"""

from __future__ import annotations

import json
from typing import Any

from etbuild import backends
from etbuild.errors import InputError, Problem

Entry = dict[str, Any]
Slot = dict[str, Entry]
"""What is lowered at one index: for each method that takes part, its partitioner."""


def align(partitioners: dict[str, list[Entry]]) -> list[Slot]:
    """Puts the partitioners of all methods into slots, keeping each method's own order.

    Equal partitioners always share a slot; partitioners of one backend with different options do where the backend and
    the order allow, so that the backend is called once for all methods.

    Args:
        partitioners: For each method its entries (`backend` and `options`), each of them once.

    Returns:
        The slots in order. A slot holds one backend.

    Raises:
        InputError: Two methods want the same partitioners in opposite orders.
    """
    order = _merged_order(partitioners)
    slots: list[Slot] = []
    for key in order:
        slot = {
            method: entry for method, entries in sorted(partitioners.items()) for entry in entries if _key(entry) == key
        }
        _place(slot, slots)
    return slots


def _key(entry: Entry) -> str:
    return json.dumps([entry["backend"], entry["options"]], sort_keys=True)


def _merged_order(partitioners: dict[str, list[Entry]]) -> list[str]:
    """All distinct partitioners, each after those that some method puts before it; ties by method and index."""
    waiting = {method: [_key(entry) for entry in entries] for method, entries in sorted(partitioners.items())}
    order: list[str] = []
    while any(waiting.values()):
        heads = [keys[0] for keys in waiting.values() if keys]
        free = [head for head in heads if not any(head in keys[1:] for keys in waiting.values())]
        if not free:
            raise InputError([_contradiction(partitioners, waiting)])
        order.append(free[0])
        waiting = {method: [key for key in keys if key != free[0]] for method, keys in waiting.items()}
    return order


def _contradiction(partitioners: dict[str, list[Entry]], waiting: dict[str, list[str]]) -> Problem:
    involved = [method for method, keys in waiting.items() if keys]
    orders = "; ".join(
        f"`{method}`: {', '.join(entry['backend'] for entry in partitioners[method])}" for method in involved
    )
    return Problem(
        f"the methods put the same partitioners in different orders ({orders})",
        ("methods", involved[-1], "partitioners"),
        "all methods are lowered in one pass: use one order, or leave a partitioner out",
    )


def _place(slot: Slot, slots: list[Slot]) -> None:
    """Joins an earlier slot that may be lowered together with it, unless a method is there or in between; else goes to
    the end."""
    kind = _kind(slot)
    for earlier in reversed(slots):
        if not slot.keys().isdisjoint(earlier):
            break
        if _kind(earlier) == kind:
            earlier.update(slot)
            return
    slots.append(slot)


def _kind(slot: Slot) -> tuple[str, str]:
    method, entry = next(iter(slot.items()))
    return backends.together(entry["backend"], entry["options"], ("methods", method, "partitioners"))
