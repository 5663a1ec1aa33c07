"""Binds lowered methods to the content of weights: computes what recipes say, and the digests of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import torch
from executorch.exir._serialize._cord import FileBackedData

from etbuild.exception_text import summary
from etbuild.lower import recipes
from etbuild.lower.named_data import Blob
from etbuild.lower.recipes import Form, Ingredients, Recipe
from etbuild.lower.weight_storage import is_uniform

_DIGEST = r"[0-9a-f]{64}"


class CannotBind(Exception):
    """The content of weights does not fit a template. The message gives users the reason."""


class _Content(FileBackedData):  # type: ignore[misc]
    """The content of a tensor, for ExecuTorch's stores: they then copy it only to the program's file."""

    def __init__(self, memory: torch.Tensor, sha256: bytes) -> None:
        self._memory = memoryview(memory.numpy())
        self._size, self._sha256, self._finalizer = len(self._memory), sha256, None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Content:
        return self  # ExecuTorch's serializer copies what it changes, which is not content

    def prefix(self, size: int) -> bytes:
        return bytes(self._memory[:size])

    def to_bytes(self) -> bytes:
        return bytes(self._memory)

    def write_to_file(self, outfile: BinaryIO) -> None:
        outfile.write(self._memory)


@dataclass
class _Bound:
    """The content of a recipe.

    Attributes:
        memory: Its bytes, uint8[nbytes].
        element_size: The size of an element in bytes.
    """

    memory: torch.Tensor
    element_size: int

    @cached_property
    def sha256(self) -> bytes:
        """Its digest."""
        return hashlib.sha256(memoryview(self.memory.numpy())).digest()

    @cached_property
    def uniform(self) -> bool:
        """Whether all elements are equal."""
        return is_uniform(self.memory, self.element_size)


class Binding:
    """Computes the content of recipes, each once, however many methods use it."""

    def __init__(self, ingredients: Ingredients, jobs: int) -> None:
        """Args:
        ingredients: The content of parameters and buffers, and the functions of backends.
        jobs: The number of recipes to compute at the same time.
        """
        self._ingredients, self._jobs = ingredients, jobs
        self._bound: dict[str, _Bound] = {}

    def learn(self, described: Mapping[str, tuple[Recipe, Form]], checks: Sequence[Recipe]) -> None:
        """Computes recipes.

        Args:
            described: For each digest of a recipe, the recipe, and the form of the tensor that it makes.
            checks: Recipes of functions that check content.

        Raises:
            CannotBind: A recipe cannot be computed from this content, or a check refuses it.
        """
        for check in checks:
            self._compute(check)
        new = {digest: each for digest, each in described.items() if digest not in self._bound}

        def compute(digest: str) -> tuple[str, _Bound]:
            recipe, form = new[digest]
            bound = _bytes_of(self._compute(recipe).resolve_conj().resolve_neg(), form)
            assert bound.sha256
            return digest, bound

        with ThreadPoolExecutor(self._jobs) as pool:
            self._bound.update(pool.map(compute, new))

    def _compute(self, recipe: Recipe) -> Any:
        try:
            with torch.no_grad():
                return recipes.compute(recipe, self._ingredients)
        except Exception as error:  # operators and functions of backends raise anything
            raise CannotBind(summary(error)) from error

    def __contains__(self, digest: str) -> bool:
        """Whether there is a recipe with this digest."""
        return digest in self._bound

    def has_equal(self, digests: Iterable[str]) -> bool:
        """Whether two of these recipes have the same content."""
        content = [self._bound[digest].sha256 for digest in digests]
        return len(set(content)) < len(content)

    def blob(self, digest: str) -> Blob:
        """The content of a recipe."""
        bound = self._bound[digest]
        return Blob(_Content(bound.memory, bound.sha256), bound.sha256.hex())

    def text(self, text: str) -> str:
        """A text with the digests of content in place of those of recipes.

        A text that ends with the identity of a weight (`weight_sharing.identity`) keeps the weight's name only if all
        elements are equal.
        """

        def found(match: re.Match[str]) -> str:
            bound = self._bound.get(match[1])
            if bound is None:
                return match[0]
            return bound.sha256.hex() + (match[2] if match[2] and bound.uniform else "")

        return re.sub(rf"({_DIGEST})( .+$)?", found, text)

    def compiled(self, content: bytes) -> bytes:
        """What a backend compiled, with the digests of content in place of those of recipes."""

        def found(match: re.Match[bytes]) -> bytes:
            bound = self._bound.get(match[0].decode())
            return match[0] if bound is None else bound.sha256.hex().encode()

        return re.sub(_DIGEST.encode(), found, content)


def _bytes_of(tensor: torch.Tensor, form: Form) -> _Bound:
    """The bytes of a tensor in the order of its memory. Raises CannotBind if it has another form than expected."""
    tensor = tensor.detach()
    if recipes.form(tensor) != form:
        raise CannotBind(f"a recipe makes {recipes.form(tensor)}, not {form}")
    if tensor.is_contiguous():
        flat: Any = tensor.view(-1).view(torch.uint8)
    else:
        flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return _Bound(flat, tensor.element_size())
