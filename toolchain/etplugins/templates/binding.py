"""Binds lowered methods to the content of weights: computes the content of recipes, and its digests."""

from __future__ import annotations

import hashlib
import re
import threading
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from etbuild.exception_text import summary
from etbuild.lower.blobs import Blob
from etbuild.model.tensor_bytes import is_uniform
from etbuild.surroundings.memory import give_back
from etplugins.accelerate.blob_files import FileBackedData, PartOfFile, in_file
from etplugins.templates import mapped_files, recipes
from etplugins.templates.recipes import Form, Ingredients, Recipe

_DIGEST = r"[0-9a-f]{64}"
_SMALL = 1 << 20  # bytes: smaller content stays in memory, because a file for each would take longer
_KEPT = 1 << 28  # bytes of computed content that stay in memory in all, because a file is one more copy


class CannotBind(Exception):
    """The content of weights does not fit a template. The message gives users the reason."""


class _Content(FileBackedData):  # type: ignore[misc]
    """The content of a weight, for ExecuTorch's stores. Some is read again when the program's file is written."""

    def __init__(self, read: Callable[[], memoryview], size: int, sha256: bytes) -> None:
        self._read, self._size, self._sha256, self._finalizer = read, size, sha256, None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Content:
        return self  # ExecuTorch's serializer copies what it changes, but it does not change content

    def prefix(self, size: int) -> bytes:
        return bytes(self._read()[:size])

    def to_bytes(self) -> bytes:
        return bytes(self._read())

    def write_to_file(self, outfile: BinaryIO) -> None:
        outfile.write(self._read())


@dataclass(frozen=True)
class _Bound:
    """The content of a recipe.

    Attributes:
        digest: The sha256 of its bytes.
        uniform: Whether all elements are equal.
        content: Its bytes; None if nothing writes them.
    """

    digest: bytes
    uniform: bool
    content: FileBackedData | None

    @property
    def sha256(self) -> str:
        """Its digest in hex."""
        return self.digest.hex()


class Binding:
    """Computes the content of each recipe once, however many methods use it."""

    def __init__(self, ingredients: Ingredients, jobs: int, directory: Path) -> None:
        """Args:
        ingredients: The content of parameters and buffers, and the functions of backends.
        jobs: The number of recipes to compute at the same time.
        directory: An existing directory for computed content: in memory, all of it would be a second copy of the
            weights. The files are needed as long as the bound methods.
        """
        self._ingredients, self._jobs, self._directory = ingredients, jobs, directory
        self._bound: dict[str, _Bound] = {}
        self._room, self._lock = _KEPT, threading.Lock()

    def learn(
        self, described: Mapping[str, tuple[Recipe, Form]], checks: Sequence[Recipe], written: Collection[str]
    ) -> None:
        """Computes recipes.

        Args:
            described: The recipes by digest, each with the form of the tensor that it makes.
            checks: Recipes whose functions check content.
            written: The digests of those whose content the program gets. Of the others, only digests are needed.

        Raises:
            CannotBind: A recipe cannot be computed from this content, or a check refuses it.
        """
        for check in checks:
            self._compute(check)
        known = {digest for digest, each in self._bound.items() if each.content is not None or digest not in written}
        new = {digest: each for digest, each in described.items() if digest not in known}

        def compute(digest: str) -> tuple[str, _Bound]:
            recipe, form = new[digest]
            flat = self._bytes_of(recipe, form)
            sha256 = hashlib.sha256(flat.numpy().data).digest()
            content = self._content(recipe, form, flat, sha256) if digest in written else None
            bound = _Bound(sha256, is_uniform(flat, getattr(torch, form[0]).itemsize), content)
            del flat
            if "weight" not in recipe and not isinstance(content, _Content):
                give_back()  # the computation took memory
            return digest, bound

        with ThreadPoolExecutor(self._jobs) as pool:
            self._bound.update(pool.map(compute, new))

    def _bytes_of(self, recipe: Recipe, form: Form) -> torch.Tensor:
        """The bytes of the tensor that a recipe makes, uint8[nbytes]."""
        return _bytes_of(self._compute(recipe).resolve_conj().resolve_neg(), form)

    def _content(self, recipe: Recipe, form: Form, flat: torch.Tensor, sha256: bytes) -> FileBackedData:
        """An object with these bytes for ExecuTorch's stores. It keeps them in memory only if they are few."""
        memory = flat.numpy().data
        if len(memory) < _SMALL:
            memory = memoryview(bytes(memory))  # a view may keep a whole mapping
        elif "weight" in recipe:
            place = mapped_files.place(flat.data_ptr(), len(memory))
            if place is not None:
                return PartOfFile(place.file, len(memory), sha256, zlib.crc32(memory), place.offset)
            return _Content(lambda: self._bytes_of(recipe, form).numpy().data, len(memory), sha256)
        elif not self._has_room(len(memory)):
            return in_file(self._directory, memory)
        return _Content(lambda: memory, len(memory), sha256)

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes may stay in memory. Counts them."""
        with self._lock:
            fits = size <= self._room
            self._room -= size if fits else 0
        return fits

    def _compute(self, recipe: Recipe) -> Any:
        try:
            with torch.no_grad():
                return recipes.compute(recipe, self._ingredients)
        except Exception as error:  # operators and functions of backends raise anything
            raise CannotBind(summary(error)) from error

    def __contains__(self, digest: str) -> bool:
        """Whether there is a recipe with this digest."""
        return digest in self._bound

    def has_equal(self, digests: Collection[str]) -> bool:
        """Whether two of these digests, of recipes or of content, stand for the same content."""
        content = {self._bound[digest].sha256 if digest in self else digest for digest in digests}
        return len(content) < len(digests)

    def blob(self, digest: str) -> Blob:
        """The content of a recipe."""
        bound = self._bound[digest]
        assert bound.content is not None, "it was asked for"
        return Blob(bound.content, bound.sha256)

    def text(self, text: str) -> str:
        """The text, with digests of recipes replaced by those of content.

        A text that ends with the identity of a weight (`weight_sharing.identity`) keeps the weight's name only if all
        elements are equal.
        """

        def found(match: re.Match[str]) -> str:
            bound = self._bound.get(match[1])
            if bound is None:
                return match[0]
            return bound.sha256 + (match[2] if match[2] and bound.uniform else "")

        return re.sub(rf"({_DIGEST})( .+$)?", found, text)

    def compiled(self, content: bytes) -> bytes:
        """The output of a backend, with digests of recipes replaced by those of content."""
        named = bytearray(content)
        for match in re.finditer(rf"(?=({_DIGEST}))".encode(), content):  # also finds a digest after another digit
            if (bound := self._bound.get(match[1].decode())) is not None:
                named[match.start(1) : match.end(1)] = bound.sha256.encode()
        return bytes(named)


def _bytes_of(tensor: torch.Tensor, form: Form) -> torch.Tensor:
    """The bytes of a tensor in the order of its memory, uint8[nbytes]. Raises CannotBind if its form is another one."""
    tensor = tensor.detach()
    if recipes.form(tensor) != form:
        raise CannotBind(f"a recipe makes {recipes.form(tensor)}, not {form}")
    if tensor.is_contiguous():
        return tensor.view(-1).view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
