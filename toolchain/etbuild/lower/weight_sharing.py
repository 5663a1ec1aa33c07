"""What methods share of their weights, and which weights the artifacts hold more than once.

A weight is a content: two parameters or buffers with the same bytes are one. But those of which all elements are equal,
as in a bias of zeros, are one only if they have one name: two layers that start with zeros are two layers.

A weight is held by *places*: ExecuTorch's own constants are one place, each delegate is another. Two places may be one
copy:

- delegates with named data, if they have the weight's blob in common, also those of two backends. Blobs have no names
  of weights, so that sizes decide: of the blobs that have the weight's size, both have as many in common as they could.
  Where a backend packs weights to other sizes, one common blob is enough;
- delegates of one backend without, if what it compiled is the same bytes. ExecuTorch writes equal bytes once.

A copy counts with its share of what its delegate stores, at most with the size that the weight has in the module: half
of it, where a backend keeps half precision.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        weights: The first name and the size in bytes of each weight that it reads, by `identity`.
    """

    backend: str
    program: str
    stored: int
    named_data: dict[str, int]
    weights: dict[str, tuple[str, int]]

    def facts(self) -> dict[str, Any]:
        """As JSON data, which `read` takes."""
        return asdict(self)


def identity(digest: str, name: str | None) -> str:
    """What stands for a weight: the digest of its content, with its name where the content alone does not tell it."""
    return digest if name is None else f"{digest} {name}"


def _contents(identities: Iterable[str]) -> set[str]:
    """The digests of weights: blobs of named data are kept by content, whatever names they have."""
    return {each.partition(" ")[0] for each in identities}


Places = dict[str, list[Place]]
"""The places of each method."""


def read(facts: dict[str, Any]) -> Place:
    """What `Place.facts` gave.

    Raises:
        TypeError, KeyError, ValueError: It did not.
    """
    weights = {weight: (str(name), int(size)) for weight, (name, size) in facts["weights"].items()}
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
    for weight, readers in sorted(_readers(places).items()):
        name, size = min(place.weights[weight] for _, place in readers)
        copies = _copies(weight, readers)
        if len({method for method, _ in readers}) > 1:
            expected += size
            shared += size if len(copies) == 1 else 0
        if len(copies) > 1:
            sizes = [max(_share(weight, place) for _, place in copy) for copy in copies]
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
            for weight in place.weights:
                readers.setdefault(weight, []).append((method, place))
    return readers


def _copies(weight: str, readers: _Readers) -> list[_Readers]:
    """The readers of a weight, those together that have one copy."""
    copies: list[_Readers] = []
    for reader in readers:
        same = [copy for copy in copies if any(_one_copy(weight, reader[1], other) for _, other in copy)]
        others = [copy for copy in copies if not any(copy is joined for joined in same)]
        copies = [*others, [*(each for copy in same for each in copy), reader]]
    return copies


def _one_copy(weight: str, one: Place, other: Place) -> bool:
    if (one.backend, one.program, one.named_data) == (other.backend, other.program, other.named_data):
        return True
    common = one.named_data.keys() & other.named_data.keys()
    size = one.weights[weight][1]
    shared = _of_size(size, one) & _of_size(size, other)
    wanted = min(len(shared), *(_blobs_of(shared, place, size) for place in (one, other)))
    if wanted:
        return sum(one.named_data[key] == size for key in common) >= wanted
    return bool(common)


def _of_size(size: int, place: Place) -> set[str]:
    """The contents of a size that a place reads."""
    return _contents(weight for weight, (_, own) in place.weights.items() if own == size)


def _blobs_of(shared: set[str], place: Place, size: int) -> int:
    """How many blobs of a size a delegate can have of shared contents: those that are not of others that it reads."""
    return max(0, sum(blob == size for blob in place.named_data.values()) - len(_of_size(size, place) - shared))


def _share(weight: str, place: Place) -> int:
    """The bytes of a weight in a place."""
    size, total = place.weights[weight][1], sum(size for _, size in place.weights.values())
    return size * min(place.stored, total) // total if place.backend and total else size


def _described(copies: list[_Readers]) -> list[str]:
    """The readers of each copy, in words."""
    described = []
    for copy in copies:
        backends = sorted({place.backend or "portable operators" for _, place in copy})
        methods = sorted({f"`{method}`" for method, _ in copy})
        described.append(f"{' and '.join(backends)} of {', '.join(methods)}")
    return sorted(described)
