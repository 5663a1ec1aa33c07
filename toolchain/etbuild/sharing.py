"""What methods share of their weights, and which weights the artifacts hold more than once.

A weight is a content: two parameters or buffers with the same bytes are one. It is held by *places*: ExecuTorch's own
constants are one place, each delegate is another. Two places may be one copy:

- delegates with named data, if they have the weight's blob in common, also those of two backends. Blobs have no names
  of weights, so that sizes decide: of the blobs that have the weight's size, both have as many in common as they could.
  Where a backend packs weights to other sizes, one common blob is enough;
- delegates of one backend without, if what it compiled is the same bytes. ExecuTorch writes equal bytes once.

A copy counts with its share of what its delegate stores, at most with the size that the weight has in the module: half
of it, where a backend keeps half precision.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """A delegate, or all that a method's portable operators read.

    Attributes:
        backend: ExecuTorch's name of it; empty for portable operators.
        program: The digest of what the backend compiled.
        stored: The size in bytes of that and of its named data.
        named_data: The size in bytes of each of its blobs of named data, by digest.
        weights: By digest of its content, the first name and the size in bytes of each weight that it reads.
    """

    backend: str
    program: str
    stored: int
    named_data: dict[str, int]
    weights: dict[str, tuple[str, int]]

    def facts(self) -> dict[str, Any]:
        """As JSON data, which `read` takes."""
        return asdict(self)


Places = dict[str, list[Place]]
"""The places of each method."""


def read(facts: dict[str, Any]) -> Place:
    """What `Place.facts` gave.

    Raises:
        TypeError, KeyError, ValueError: It did not.
    """
    weights = {digest: (str(name), int(size)) for digest, (name, size) in facts["weights"].items()}
    return Place(**{**facts, "weights": weights})


def measure(places: Places) -> dict[str, Any]:
    """How much of the weights is shared, as JSON data.

    Returns:
        `expected_bytes`, the size of the weights that several methods read, each counted once; `shared_bytes`, of those
        of which there is one copy; `duplicate_bytes`, of all copies but the largest of each weight, also where one
        method has them; `duplicates`, the weights of these, the largest first: their name, bytes, copies and readers.
    """
    expected = shared = 0
    duplicates: list[dict[str, Any]] = []
    for digest, readers in sorted(_readers(places).items()):
        name, size = min(place.weights[digest] for _, place in readers)
        copies = _copies(digest, readers)
        if len({method for method, _ in readers}) > 1:
            expected += size
            shared += size if len(copies) == 1 else 0
        if len(copies) > 1:
            sizes = [max(_share(digest, place) for _, place in copy) for copy in copies]
            duplicates.append(
                {"weight": name, "bytes": sum(sizes) - max(sizes), "copies": len(copies), "readers": _described(copies)}
            )
    duplicates.sort(key=lambda entry: (-entry["bytes"], entry["weight"]))
    return {
        "expected_bytes": expected,
        "shared_bytes": shared,
        "duplicate_bytes": sum(entry["bytes"] for entry in duplicates),
        "duplicates": duplicates,
    }


_Readers = list[tuple[str, Place]]


def _readers(places: Places) -> dict[str, _Readers]:
    readers: dict[str, _Readers] = {}
    for method, listed in sorted(places.items()):
        for place in listed:
            for digest in place.weights:
                readers.setdefault(digest, []).append((method, place))
    return readers


def _copies(digest: str, readers: _Readers) -> list[_Readers]:
    """The readers of a weight, those together that have one copy."""
    copies: list[_Readers] = []
    for reader in readers:
        same = [copy for copy in copies if any(_one_copy(digest, reader[1], other) for _, other in copy)]
        others = [copy for copy in copies if not any(copy is joined for joined in same)]
        copies = [*others, [*(each for copy in same for each in copy), reader]]
    return copies


def _one_copy(digest: str, one: Place, other: Place) -> bool:
    if (one.backend, one.program, one.named_data) == (other.backend, other.program, other.named_data):
        return True
    common = one.named_data.keys() & other.named_data.keys()
    size = one.weights[digest][1]
    wanted = min(_count(one.weights.keys() & other.weights.keys(), one, size), _blobs(one, other, size))
    if wanted:
        return sum(one.named_data[key] == size for key in common) >= wanted
    return bool(common)


def _blobs(one: Place, other: Place, size: int) -> int:
    """How many blobs of a size two delegates can have in common: those that are not of weights that one alone reads."""
    return min(
        max(0, sum(blob == size for blob in place.named_data.values()) - _count(alone, place, size))
        for place, alone in (
            (one, one.weights.keys() - other.weights.keys()),
            (other, other.weights.keys() - one.weights.keys()),
        )
    )


def _count(digests: set[str], place: Place, size: int) -> int:
    return sum(place.weights[digest][1] == size for digest in digests)


def _share(digest: str, place: Place) -> int:
    """The bytes of a weight in a place."""
    size, total = place.weights[digest][1], sum(size for _, size in place.weights.values())
    return size * min(place.stored, total) // total if place.backend and total else size


def _described(copies: list[_Readers]) -> list[str]:
    """The readers of each copy, in words."""
    described = []
    for copy in copies:
        backends = sorted({place.backend or "portable operators" for _, place in copy})
        methods = sorted({f"`{method}`" for method, _ in copy})
        described.append(f"{' and '.join(backends)} of {', '.join(methods)}")
    return sorted(described)
