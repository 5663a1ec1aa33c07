"""The content of the parameters and buffers of an export that come from weights files: read, or computed from them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from etbuild.export.kept_weights import KeptWeights
from etbuild.files.digests import digest
from etbuild.model.checkpoint import Checkpoint
from etbuild.model.tensor_bytes import flat_bytes
from etbuild.model.weights_files import Recipe, first_name, form

if TYPE_CHECKING:
    from etbuild.export.archive import SavedExport

Tensors = dict[str, torch.Tensor]
_FILE = "quantized.safetensors"  # of one weight in a cache


def read(
    saved: SavedExport, checkpoint: Checkpoint, needed: Collection[str] | None, kept: KeptWeights | None
) -> Tensors:
    """Reads the tensors of methods from weights files, or computes them.

    A weight is in memory only while something is computed from it, unless a method has it too.

    Args:
        saved: The export.
        checkpoint: The weights files.
        needed: The names of the tensors. None: all.
        kept: Where computed weights are kept. None: nowhere.

    Returns:
        The tensors by name.

    Raises:
        InputError: A tensor is missing or damaged.
        BuildError: torchao refuses the content of a weight.
    """
    firsts = {first_name(entry) for entry in saved.tensors if needed is None or entry.name in needed}
    wanted = [entry for entry in saved.tensors if first_name(entry) in firsts]
    computed = {entry.name: entry.computed for entry in wanted if entry.computed is not None}
    if not computed:
        return checkpoint.by_name(needed)
    before = _read_kept(kept)
    plain = {entry.name for entry in wanted if entry.in_weights}
    plain |= {recipe["weight"] for recipe in computed.values() if recipe.keys() == {"weight"}}
    missing = [recipe for recipe in computed.values() if "part" in recipe and digest(recipe) not in before]
    read, new = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for names, tensor in checkpoint.each({*plain, *(recipe["weight"] for recipe in missing)}):
        new.update(_quantized([recipe for recipe in missing if recipe["weight"] in names], tensor.detach(), kept))
        read.update({name: tensor for name in names if name in plain})
        del tensor
    made = {**before, **_keep(new, kept)}
    content = {name: made[digest(it)] if "part" in it else read[it["weight"]] for name, it in computed.items()}
    return {**{name: tensor for name, tensor in read.items() if name in plain}, **content}


def _quantized(recipes: list[Recipe], weight: torch.Tensor, kept: KeptWeights | None) -> Tensors:
    """What is made from one weight, by the digests of the recipes."""
    calls: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        calls.setdefault(digest(_whole(recipe)), []).append(recipe)
    found: Tensors = {}
    for parts in calls.values():
        made = _made(_whole(parts[0]), {recipe["part"] for recipe in parts}, weight, kept)
        found.update({digest(recipe): made[recipe["part"]] for recipe in parts})
    return found


def _whole(recipe: Recipe) -> Recipe:
    return {key: value for key, value in recipe.items() if key != "part"}


def _made(recipe: Recipe, parts: set[str], weight: torch.Tensor, kept: KeptWeights | None) -> Tensors:
    """The parts of a quantized weight, from a cache if quantizing it takes long."""
    from etbuild.quantize import deferred

    if kept is None or kept.fetch is None or kept.store is None or not deferred.is_slow(recipe):
        return deferred.quantized(recipe, parts, weight)
    from safetensors.torch import load_file, save_file

    how = {key: value for key, value in recipe.items() if key != "weight"}
    content = hashlib.sha256(memoryview(flat_bytes(weight).numpy())).hexdigest()
    key = {"recipe": how, "parts": sorted(parts), "form": form(weight), "content": content}
    directory = kept.file.parent / f".{digest(key)}"
    directory.mkdir(parents=True, exist_ok=True)
    if not kept.fetch(key, directory):
        save_file(deferred.quantized(recipe, parts, weight), directory / _FILE)
        kept.store(key, directory, _FILE)
    return load_file(directory / _FILE)  # type: ignore[no-any-return]


def _read_kept(kept: KeptWeights | None) -> Tensors:
    """What an earlier step has computed, by the digests of the recipes."""
    from safetensors.torch import load_file

    return load_file(kept.file) if kept is not None and _holds(kept.file) else {}


def _holds(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _keep(new: Tensors, kept: KeptWeights | None) -> Tensors:
    """Writes what was computed for later steps, unless an earlier one did. Returns it, in memory only as it is used."""
    from safetensors.torch import load_file, save_file

    if kept is None or not new or _holds(kept.file):
        return new
    kept.file.parent.mkdir(exist_ok=True)
    save_file(new, kept.file)
    return load_file(kept.file)  # type: ignore[no-any-return]
