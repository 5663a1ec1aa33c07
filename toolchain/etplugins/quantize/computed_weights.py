"""Reads the parameters and buffers of an export from weights files, or computes them from weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from etbuild.export.kept_weights import KeptWeights
from etbuild.files.digests import digest
from etbuild.model import written_tensors
from etbuild.model.stored_tensors import StoredTensors
from etbuild.model.tensor_bytes import flat_bytes, form
from etbuild.model.tensor_facts import Recipe, TensorFacts, first_name
from etbuild.model.written_tensors import Form

if TYPE_CHECKING:
    from etbuild.export.read_archive import SavedExport
    from etbuild.model.checkpoint import CheckpointTensors

Tensors = Mapping[str, torch.Tensor]
_FILE = "quantized.safetensors"  # the parts of one weight in a cache


def read(
    saved: SavedExport, checkpoint: CheckpointTensors, needed: Collection[str] | None, kept: KeptWeights | None
) -> Callable[[str], torch.Tensor]:
    """Computes the tensors of methods that are not weights themselves: see `RecipeQuantizer.read`."""
    firsts = {first_name(entry) for entry in saved.tensors if needed is None or entry.name in needed}
    entries = [entry for entry in saved.tensors if first_name(entry) in firsts]
    computed = {entry.name: entry.computed for entry in entries if entry.computed is not None}
    earlier = _read_kept(kept)
    quantized = {
        digest(recipe): entry for entry in entries if (recipe := entry.computed) is not None and "part" in recipe
    }
    missing = {key: entry for key, entry in quantized.items() if key not in earlier}
    new = _computed(missing, checkpoint, kept) if missing else {}

    def tensor(name: str) -> torch.Tensor:
        recipe = computed.get(name)
        if recipe is None:
            return checkpoint.tensor(name)
        if "part" not in recipe:
            return checkpoint.tensor(recipe["weight"])
        key = digest(recipe)
        return new[key] if key in new else earlier[key]

    return tensor


def _computed(missing: Mapping[str, TensorFacts], checkpoint: CheckpointTensors, kept: KeptWeights | None) -> Tensors:
    """Computes tensors, and reads each weight once. Writes the tensors for later steps, unless an earlier step has left
    a file: it holds other tensors."""
    recipes = [entry.computed for entry in missing.values() if entry.computed is not None]

    def quantized() -> Iterator[tuple[str, torch.Tensor]]:
        for names, tensor in checkpoint.read_all({recipe["weight"] for recipe in recipes}):
            recipes_of_weight = [recipe for recipe in recipes if recipe["weight"] in names]
            yield from _quantized(recipes_of_weight, tensor.detach(), kept).items()

    if kept is None or _has_content(kept.file):
        return dict(quantized())
    kept.file.parent.mkdir(exist_ok=True)
    forms = {key: (getattr(torch, entry.dtype), entry.shape) for key, entry in missing.items()}
    return _written(kept, forms, quantized())


def _written(kept: KeptWeights, forms: Mapping[str, Form], tensors: Iterable[tuple[str, torch.Tensor]]) -> Tensors:
    """Writes tensors to a new file, and renames it to the name in `kept`. So the file is whole or absent, and a process
    that reads an earlier file can go on.

    The arguments and errors are those of `written_tensors.write_as_made`.
    """
    with kept.scratch(kept.file.parent) as scratch:
        path = scratch / kept.file.name
        with path.open("wb") as opened:
            written_tensors.write_as_made(opened, forms, tensors)
            opened.flush()
            os.fsync(opened.fileno())
        stored = StoredTensors(path)
        path.replace(kept.file)
        return stored


def _quantized(recipes: list[Recipe], weight: torch.Tensor, kept: KeptWeights | None) -> Tensors:
    """The tensors that are computed from one weight, by the digests of their recipes."""
    calls: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        calls.setdefault(digest(_without_part(recipe)), []).append(recipe)
    tensors: dict[str, torch.Tensor] = {}
    for parts in calls.values():
        quantized = _parts(_without_part(parts[0]), {recipe["part"] for recipe in parts}, weight, kept)
        tensors.update({digest(recipe): quantized[recipe["part"]] for recipe in parts})
    return tensors


def _without_part(recipe: Recipe) -> Recipe:
    return {key: value for key, value in recipe.items() if key != "part"}


def _parts(recipe: Recipe, parts: set[str], weight: torch.Tensor, kept: KeptWeights | None) -> Tensors:
    """The parts of a quantized weight, from a cache if quantizing it takes long."""
    from etplugins.quantize import from_recipe  # who reads what was kept needs no torchao

    if kept is None or kept.fetch is None or kept.store is None or not from_recipe.is_slow(recipe):
        return from_recipe.quantized(recipe, parts, weight)
    from safetensors.torch import load_file, save_file

    recipe_without_weight = {key: value for key, value in recipe.items() if key != "weight"}
    content = hashlib.sha256(memoryview(flat_bytes(weight).numpy())).hexdigest()
    key = {"recipe": recipe_without_weight, "parts": sorted(parts), "form": form(weight), "content": content}
    directory = kept.file.parent / f".{digest(key)}"
    directory.mkdir(parents=True, exist_ok=True)
    if not kept.fetch(key, directory):
        save_file(from_recipe.quantized(recipe, parts, weight), directory / _FILE)
        kept.store(key, directory, _FILE)
    return load_file(directory / _FILE)  # type: ignore[no-any-return]


def _read_kept(kept: KeptWeights | None) -> Tensors:
    """The tensors that an earlier step has computed, by the digests of their recipes."""
    return StoredTensors(kept.file) if kept is not None and _has_content(kept.file) else {}


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0
