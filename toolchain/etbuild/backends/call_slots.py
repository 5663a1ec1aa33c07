"""Decides which partitioners of different methods are lowered in one call.

ExecuTorch lowers partitioner lists by index: the first of every method together, then the second, and so on. For
`{prefill: [A, X], decode: [X]}` it would call backend X once for each method, and the methods would share no weights.

The slots are a shortest common supersequence of the lists: each method keeps its order, and each backend is in as few
slots as the orders allow.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from etbuild import backends
from etbuild.backends import Options
from etbuild.errors import DocumentPath, InputError, Problem


@dataclass(frozen=True)
class Item:
    """A partitioner of a method.

    Attributes:
        name: Its name in errors.
        path: The document path that names it.
        kind: A key. Partitioners with the same kind may be lowered in one call.
        identity: A key that is equal for equal partitioners. Within a kind, equal partitioners are put into one slot
            first.
        once: A key. Partitioners with the same key must be lowered in as few calls as a single method needs, because
            the backend may look at all methods of a call. None if several calls give the same result as one.
    """

    name: str
    path: DocumentPath
    kind: str
    identity: str
    once: str | None


Slot = dict[str, Item]
"""The partitioners that are lowered at one index, by method. Not every method takes part."""

_Row = tuple[Item, ...]
_Place = tuple[int, ...]
"""For each row, the number of its partitioners that are already in slots."""
_Step = frozenset[int]
"""The rows that take part in a slot."""
_LOOKS = 2000
"""After so many partial solutions, only the best one is kept. Lists that people write need few."""


def item(name: str, options: Options, path: DocumentPath) -> Item:
    """Makes the `Item` for the partitioner entry at `path` of a manifest.

    Raises:
        InputError: A backend of a package raised an error.
    """
    backend = backends.get(name)
    kind = json.dumps([name, backends.grouping_key(name, options, path)])
    identity = json.dumps([name, options], sort_keys=True)
    if backend.separable:
        return Item(name, path, kind, identity, None)
    # Two calls of a factory may return partitioners of different backends.
    once = identity if backend.delegates_to_any else kind
    return Item(backends.ask(backend, "shown_name", options), path, kind, identity, once)


def align(lists: Mapping[str, Sequence[Item]]) -> list[Slot]:
    """Puts the partitioners of all methods into slots, keeping each method's own order.

    Args:
        lists: The partitioners of each method, in order.

    Returns:
        The slots in order. A slot holds one kind.

    Raises:
        InputError: The methods' orders contradict each other: see `check`.
    """
    check(lists)
    rows, numbers = _rows(lists)
    steps = _search(rows)
    if steps is None:
        raise InputError([_contradiction(lists)])
    left = {method: iter(lists[method]) for method in sorted(lists)}
    return [{method: next(items) for method, items in left.items() if numbers[method] in step} for step in steps]


def check(lists: Mapping[str, Sequence[Item]]) -> None:
    """Checks that one order fits all methods.

    Raises:
        InputError: A backend that looks at all methods of a call would be called more often than one method needs.
    """
    bound = {method: [each for each in items if each.once is not None] for method, items in lists.items()}
    if _search(_rows(bound)[0]) is None:
        raise InputError([_contradiction(bound)])


def _rows(lists: Mapping[str, Sequence[Item]]) -> tuple[list[_Row], dict[str, int]]:
    """Returns the distinct lists, in the order of the first method that has each, and for each method the index of its
    list."""
    rows: dict[Any, _Row] = {}
    keys = {method: tuple((each.kind, each.identity, each.once) for each in lists[method]) for method in sorted(lists)}
    for method, key in keys.items():
        rows.setdefault(key, tuple(lists[method]))
    numbers = {key: number for number, key in enumerate(rows)}
    return list(rows.values()), {method: numbers[key] for method, key in keys.items()}


def _search(rows: list[_Row]) -> list[_Step] | None:
    """Finds the fewest slots with the A* algorithm, or None if some `once` would need more slots than the row that has
    it most often. Among equally few, it prefers those with more equal partitioners in a slot."""
    needs = [[_need(row[index:]) for index in range(len(row) + 1)] for row in rows]
    start, end = (0,) * len(rows), tuple(map(len, rows))
    order = itertools.count()
    heap: list[Any] = [((0, 0), 0, next(order), start, (0, 0), ())]
    seen: dict[_Place, tuple[int, int]] = {}
    looks = 0
    while heap:
        looks += 1
        if looks % _LOOKS == 0:
            heap = heap[:1]
        _, _, _, place, cost, steps = heapq.heappop(heap)
        if place == end:
            return list(steps)
        before = _total(needs, place)[0]
        for step in _choices(rows, place):
            taken = [rows[row][place[row]] for row in step]
            after = tuple(index + (row in step) for row, index in enumerate(place))
            calls, slots, identities = _total(needs, after)
            if before - calls < len({each.once for each in taken} - {None}):
                continue  # it needs one call too many
            spent = (cost[0] + 1, cost[1] + len({each.identity for each in taken}))
            if after not in seen or spent < seen[after]:
                seen[after] = spent
                bound = (spent[0] + slots, spent[1] + identities)
                heapq.heappush(heap, (bound, -sum(after), next(order), after, spent, (*steps, step)))
    return None


_ONCE, _KIND, _IDENTITY = range(3)


def _need(row: _Row) -> Counter[tuple[int, str]]:
    """Returns how many slots a row needs for each `once`, kind and identity."""
    counts = Counter((_ONCE, each.once) for each in row if each.once is not None)
    counts.update((_KIND, each.kind) for each in row)
    counts.update((_IDENTITY, each.identity) for each in row)
    return counts


def _total(needs: list[list[Counter[tuple[int, str]]]], place: _Place) -> tuple[int, int, int]:
    """Returns lower bounds for the slots that the rest needs: for all `once`, for all kinds, and for all identities."""
    left = (need[index] for need, index in zip(needs, place, strict=True))
    most: Counter[tuple[int, str]] = reduce(or_, left, Counter())
    totals = [0, 0, 0]
    for (counted, _), count in most.items():
        totals[counted] += count
    return totals[_ONCE], totals[_KIND], totals[_IDENTITY]


def _choices(rows: list[_Row], place: _Place) -> Iterator[_Step]:
    """Yields what the next slot may hold. A kind that is in rows only as their next item is always right."""
    heads: dict[str, list[int]] = {}
    later: set[str] = set()
    for number, (row, index) in enumerate(zip(rows, place, strict=True)):
        if index < len(row):
            heads.setdefault(row[index].kind, []).append(number)
        for each in row[index + 1 :]:
            later.update((f"kind {each.kind}", f"identity {each.identity}"))
    decided = next((numbers for kind, numbers in heads.items() if f"kind {kind}" not in later), None)
    for numbers in heads.values() if decided is None else [decided]:
        yield frozenset(numbers)
        # A partitioner that could share a slot with an equal one later may wait for it.
        eager = [number for number in numbers if f"identity {rows[number][place[number]].identity}" not in later]
        if decided is None and 0 < len(eager) < len(numbers):
            yield frozenset(eager)


def _contradiction(lists: Mapping[str, Sequence[Item]]) -> Problem:
    """Returns a problem that names two methods with opposite orders, or, if there are none, all methods with several
    partitioners."""
    methods = _opposite(lists) or [method for method, items in sorted(lists.items()) if len(items) > 1]
    orders = "; ".join(f"`{method}`: {', '.join(each.name for each in lists[method])}" for method in methods[:4])
    more = "; ..." if len(methods) > 4 else ""
    return Problem(
        f"the orders of partitioners contradict each other ({orders}{more})",
        lists[methods[-1]][0].path,
        "each of these backends is called once for all methods: use one order, or leave a partitioner out",
    )


def _opposite(lists: Mapping[str, Sequence[Item]]) -> list[str]:
    first_methods: dict[tuple[str | None, str | None], str] = {}
    for method, items in sorted(lists.items()):
        counts = Counter(each.once for each in items)
        single = [each.once for each in items if counts[each.once] == 1]
        for one, other in itertools.combinations(single, 2):
            if (other, one) in first_methods:
                return [first_methods[other, one], method]
            first_methods.setdefault((one, other), method)
    return []
