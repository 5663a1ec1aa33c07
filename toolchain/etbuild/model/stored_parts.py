"""Finds how transformers stores the tensors of a model that have other names or shapes in its files.

`save_pretrained` writes many models in the form of their first release, as hubs have them: with other names, or one
tensor for each expert where the module holds those of all experts in one, or one for queries, keys and values that the
module holds apart. `from_pretrained` undoes that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from etbuild.model.tensor_facts import StoredPart


def parts(module: torch.nn.Module) -> dict[str, list[StoredPart]]:
    """The parts of those tensors of a module that `save_pretrained` writes in another form.

    Returns:
        The parts by the name of the tensor in the module's state dict. If a model of transformers is a child of the
        module, the names of the parts begin with that of the child, too. A tensor is left out if its content in a file
        is not made of such parts.
    """
    transformers = sys.modules.get("transformers")  # a module of it cannot exist before it is imported
    if transformers is None:
        return {}
    found: dict[str, list[StoredPart]] = {}
    models: list[str] = []  # those of transformers, each with a dot at its end
    for path, child in module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(child, transformers.PreTrainedModel) and not prefix.startswith(tuple(models)):
            models.append(prefix)
            for name, stored in _parts(child).items():
                found[f"{prefix}{name}"] = [replace(part, name=f"{prefix}{part.name}") for part in stored]
    return found


def left_in_files(module: torch.nn.Module) -> dict[str, list[StoredPart]]:
    """The buffers that a model of transformers makes itself, and that files of older releases hold too, such as the
    `position_ids` of BERT. `from_pretrained` does not read them.

    Returns:
        For each buffer, by its name in the module, the tensor of such a file.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return {}
    found: dict[str, list[StoredPart]] = {}
    for path, child in module.named_modules():
        if isinstance(child, transformers.PreTrainedModel):
            state = child.state_dict().keys()
            made = {name: buffer for name, buffer in child.named_buffers(remove_duplicate=False) if name not in state}
            for name in (f"{path}.{each}" if path else each for each in made):
                shape = list(module.get_buffer(name).shape)
                found[name] = [StoredPart(name, tuple(shape), _empty(shape).stride(), 0)]
    return found


def _parts(model: Any) -> dict[str, list[StoredPart]]:
    """The parts of the tensors of a model of transformers."""
    from transformers.core_model_loading import revert_weight_conversion

    state = {name: x for name, x in model.state_dict().items() if isinstance(x, torch.Tensor)}
    empty = {name: _empty(list(tensor.shape)) for name, tensor in state.items()}
    owners = {tensor.untyped_storage()._cdata: name for name, tensor in empty.items()}
    with _Views() as views:
        saved = revert_weight_conversion(model, empty)
    found: dict[str, list[StoredPart]] = {}
    for name, tensor in saved.items():
        for part, place in views.pieces(tensor):
            owner = owners.get(part.untyped_storage()._cdata)
            if owner is not None:
                stored = StoredPart(name, tuple(part.shape), part.stride(), part.storage_offset(), place)
                found.setdefault(owner, []).append(stored)
    return {name: each for name, each in found.items() if _is_other_form(name, each, empty[name])}


def _empty(shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _is_other_form(name: str, stored: list[StoredPart], tensor: torch.Tensor) -> bool:
    """Whether parts are all of a tensor, and not the tensor itself."""
    complete = sum(_empty(part.shape).numel() for part in stored) == tensor.numel()
    itself = len(stored) == 1 and stored[0].name == name and stored[0].is_whole(list(tensor.shape))
    return complete and not itself


class _Views(TorchFunctionMode):  # type: ignore[misc]
    """Lets `contiguous` return the tensor itself, so that parts of a tensor stay views of it. Remembers what `cat` has
    made one tensor of."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[torch.Tensor, list[torch.Tensor], int]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.contiguous:
            return args[0]
        result = function(*args, **(kwargs or {}))
        if function is torch.cat:
            given = {"dim": 0, **dict(zip(("tensors", "dim"), args, strict=False)), **(kwargs or {})}
            self._made.append((result, list(given["tensors"]), given["dim"] % result.dim()))
        return result

    def pieces(self, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[int, int, int] | None]]:
        """The tensors that a tensor was made of, each with its slice of it; the tensor itself if it was not."""
        made = next((each for each in self._made if each[0] is tensor), None)
        if made is None:
            yield tensor, None
            return
        _, parts, dim = made
        start = 0
        for part in parts:
            yield part, (dim, start, tensor.shape[dim])
            start += part.shape[dim]
