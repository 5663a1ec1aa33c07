"""The smallest number of calls of backends, by trying all orders."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache


def fewest(rows: tuple[tuple[tuple[str, str], ...], ...]) -> int | None:
    """Returns the fewest slots of all choices, which it tries one by one, without using a backend of upper case more
    often than a row does."""
    kinds = [[kind for kind, _ in row] for row in rows]
    allowed = {kind: max(row.count(kind) for row in kinds) for kind in itertools.chain(*kinds)}

    @cache
    def rest(left: tuple[tuple[str, ...], ...], calls: tuple[tuple[str, int], ...]) -> float:
        if not any(left):
            return 0
        found = float("inf")
        for kind in {row[0] for row in left if row}:
            counts = Counter(dict(calls))
            counts[kind] += kind.isupper()
            if counts[kind] <= allowed[kind]:
                after = tuple(row[1:] if row[:1] == (kind,) else row for row in left)
                found = min(found, 1 + rest(after, tuple(sorted(counts.items()))))
        return found

    result = rest(tuple(map(tuple, kinds)), ())
    return None if result == float("inf") else int(result)
