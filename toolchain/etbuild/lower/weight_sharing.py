"""Measures which weights methods share, and which weights are in the artifacts more than once.

A weight is identified by its content: two parameters or buffers with the same bytes are one weight. If all elements are
equal, as in a bias of zeros, the name counts too: two layers that start with zeros have two weights.

The *readers* of weights are ExecuTorch's own constants, and each delegate. Two readers may hold one copy of a weight:

- Delegates with named data hold one copy if they share the weight's blob, even if their backends differ. Blobs do not
  have the names of weights, so sizes decide: the two delegates must share as many blobs of the weight's size as
  possible. If a backend packs weights to other sizes, one common blob is enough.
- Delegates of one backend without named data hold one copy if their compiled bytes are equal: ExecuTorch writes equal
  bytes once.

The size of a copy is its share of the bytes that its delegate stores, but not more than the size of the weight in the
module. It is half of that size if the backend stores half precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from etbuild.results import BlobWeights, Duplicate, Sharing

Origin = tuple[str, ...]
"""The names of the weights that a blob is made of. The blob replaces the first one."""

MadeOf = dict[str, set[Origin]]
"""The weights of blobs, by key, or by digest if a blob has no key. Weights with equal content have one blob."""


@dataclass(frozen=True)
class WeightReader:
    """A delegate, or all weights that the portable operators of a method read.

    Attributes:
        backend: ExecuTorch's name of the backend; empty for portable operators.
        program: The digest of the backend's compiled output; empty for portable operators.
        compiled: The size in bytes of the backend's compiled output, without its named data; 0 for portable operators.
        named_data: The size in bytes of each of its blobs of named data, by digest.
        weights: The first name and the size in bytes of each weight that it reads, by `identity`.
        made_of: The weights of its blobs, as far as they are known. If the backend does not tell: its weights by
            digest, because a blob may have the bytes of a weight.
    """

    backend: str
    program: str
    compiled: int
    named_data: dict[str, int]
    weights: dict[str, tuple[str, int]]
    made_of: MadeOf = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """The size in bytes of the backend's compiled output with its named data."""
        return self.compiled + sum(self.named_data.values())


def identity(digest: str, name: str | None) -> str:
    """The identity of a weight, which equal weights share.

    Args:
        digest: The digest of its content.
        name: Its name if all its elements are equal; otherwise None, because the content is enough.
    """
    return digest if name is None else f"{digest} {name}"


Methods = dict[str, list[WeightReader]]
"""The readers of each method."""


def measure(methods: Methods) -> Sharing:
    """Measures how much of the weights is shared.

    Returns:
        JSON data. `expected_bytes`: the size of the weights that several methods read, each counted once.
        `shared_bytes`: the size of those that have only one copy. `duplicate_bytes`: the size of all copies except the
        largest of each weight, also if one method has several. `duplicates`: the weights with several copies, the
        largest duplicates first, each with its name, bytes, number of copies and readers.
    """
    expected = shared = 0
    duplicates: list[Duplicate] = []
    for weight, readers in sorted(_readers(methods).items()):
        name, size = min(reader.weights[weight] for _, reader in readers)
        copies = _copies(weight, readers)
        if len({method for method, _ in readers}) > 1:
            expected += size
            shared += size if len(copies) == 1 else 0
        if len(copies) > 1:
            sizes = [max(_share(weight, reader) for _, reader in copy) for copy in copies]
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


def blob_weights(methods: Methods, constants: Sequence[str], keys: Iterable[str]) -> BlobWeights:
    """The names of the weights that each blob is made of, as far as they are known.

    Args:
        methods: The readers of each method.
        constants: The digests of the constants in the program.
        keys: The keys of all named data. Portable operators use the name of a weight as the key.
    """
    made_of: MadeOf = {}
    for reader in (reader for listed in methods.values() for reader in listed):
        for blob, origins in reader.made_of.items():
            made_of.setdefault(blob, set()).update(origins)
    names = {blob: _names(origins) for blob, origins in made_of.items()}
    return {
        "constants": [names.get(digest, []) for digest in constants],
        "named_data": {key: names[key] for key in sorted(keys) if names.get(key)},
    }


def _names(origins: set[Origin]) -> list[str]:
    first = sorted({origin[0] for origin in origins if origin})
    return [*first, *sorted({name for origin in origins for name in origin}.difference(first))]


_Readers = list[tuple[str, WeightReader]]


def _readers(methods: Methods) -> dict[str, _Readers]:
    readers: dict[str, _Readers] = {}
    for method, listed in sorted(methods.items()):
        for reader in listed:
            for weight in reader.weights:
                readers.setdefault(weight, []).append((method, reader))
    return readers


def _copies(weight: str, readers: _Readers) -> list[_Readers]:
    """Groups the readers of a weight by the copy that they share."""
    copies: list[_Readers] = []
    for reader in readers:
        same = [copy for copy in copies if any(_one_copy(weight, reader[1], other) for _, other in copy)]
        others = [copy for copy in copies if not any(copy is joined for joined in same)]
        copies = [*others, [*(each for copy in same for each in copy), reader]]
    return copies


def _one_copy(weight: str, one: WeightReader, other: WeightReader) -> bool:
    if (one.backend, one.program, one.named_data) == (other.backend, other.program, other.named_data):
        return True
    common = one.named_data.keys() & other.named_data.keys()
    size = one.weights[weight][1]
    shared = _of_size(size, one) & _of_size(size, other)
    wanted = min(len(shared), *(_blobs_of(shared, reader, size) for reader in (one, other)))
    if wanted:
        return sum(one.named_data[key] == size for key in common) >= wanted
    return bool(common)


def _of_size(size: int, reader: WeightReader) -> set[str]:
    """The digests of a reader's weights of a size. Blobs are compared by content, without names."""
    return {weight.partition(" ")[0] for weight, (_, own) in reader.weights.items() if own == size}


def _blobs_of(shared: set[str], reader: WeightReader, size: int) -> int:
    """The number of blobs of a size in bytes that may hold shared weights: no other weight of the reader needs them."""
    return max(0, sum(blob == size for blob in reader.named_data.values()) - len(_of_size(size, reader) - shared))


def _share(weight: str, reader: WeightReader) -> int:
    """The number of bytes that a reader needs for a weight."""
    size, total = reader.weights[weight][1], sum(size for _, size in reader.weights.values())
    return size * min(reader.stored, total) // total if reader.backend and total else size


def _described(copies: list[_Readers]) -> list[str]:
    """The readers of each copy, in words."""
    described = []
    for copy in copies:
        backends = sorted({reader.backend or "portable operators" for _, reader in copy})
        methods = sorted({f"`{method}`" for method, _ in copy})
        described.append(f"{' and '.join(backends)} of {', '.join(methods)}")
    return sorted(described)
