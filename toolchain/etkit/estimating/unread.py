"""A program of methods that were lowered without weights: its memory plans, and the size that its files will have.

In place of weights it has contents of the right size, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from etbuild.emit.emitted import Emitted
from etbuild.lower.blobs import Blob
from etplugins.accelerate.blob_files import FileBackedData
from etplugins.templates import method_archive

if TYPE_CHECKING:
    from etplugins.templates.recipes import Form, Recipe


class Unread(FileBackedData):  # type: ignore[misc]
    """A content with a size, and the digest of the recipe that makes it."""

    def __init__(self, size: int, sha256: str) -> None:
        self._size, self._sha256, self._finalizer = size, bytes.fromhex(sha256), None

    def __deepcopy__(self, memo: dict[int, Any]) -> Unread:
        return self  # ExecuTorch's serializer copies what it changes, but it does not change content

    def prefix(self, size: int) -> bytes:
        """Bytes by which ExecuTorch tells contents of one size apart."""
        return bytes(self._sha256[:size])


class Unbound:
    """Stands for `binding.Binding`: it computes no recipe. Texts keep the digests of recipes."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def learn(
        self, described: Mapping[str, tuple[Recipe, Form]], checks: Sequence[Recipe], written: Collection[str]
    ) -> None:
        """Learns the sizes of recipes, by digest."""
        del checks, written
        for digest, (_, (dtype, shape, strides)) in described.items():
            self._sizes[digest] = getattr(torch, dtype).itemsize * prod(shape)
            del strides

    def __contains__(self, digest: str) -> bool:
        """Whether there is a recipe with this digest."""
        return digest in self._sizes

    def has_equal(self, digests: Collection[str]) -> bool:
        """Whether contents are equal, which is not known: no."""
        del digests
        return False

    def blob(self, digest: str) -> Blob:
        """A content of the size of a recipe's."""
        return Blob(Unread(self._sizes[digest], digest), digest)

    def text(self, text: str) -> str:
        """The text as it is."""
        return text

    def compiled(self, content: bytes) -> bytes:
        """The output of a backend as it is."""
        return content


def load(methods: Sequence[method_archive.SavedMethod]) -> list[Emitted]:
    """Reads lowered methods, with unread contents in place of weights.

    Args:
        methods: The methods, none of which needs the content of weights, in the order of their names.

    Raises:
        InputError: A file is damaged.
    """
    binding: Any = Unbound()
    return [method_archive.load(method, binding) for method in methods]
