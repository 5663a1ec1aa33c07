"""Finds how transformers stores those tensors of a model that have other names or shapes in files.

`save_pretrained` writes many models in the form of their first release, as on hubs: with other names, with one tensor
for each expert instead of one for all, or with one tensor for queries, keys and values instead of three.
`from_pretrained` converts them back.
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
    """The parts of the tensors of a module that `save_pretrained` writes in another form.

    Returns:
        The parts by the name of the tensor in the module's state dict. If a model of transformers is a child of the
        module, the names of the parts also begin with the child's name. Leaves out a tensor if its content in a file
        does not consist of such parts.
    """
    transformers = sys.modules.get("transformers")  # without the import, there is no model of transformers
    if transformers is None:
        return {}
    parts_by_name: dict[str, list[StoredPart]] = {}
    models: list[str] = []  # the names of models of transformers, with a dot at the end
    for path, child in module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(child, transformers.PreTrainedModel) and not prefix.startswith(tuple(models)):
            models.append(prefix)
            for name, stored in _parts(child).items():
                parts_by_name[f"{prefix}{name}"] = [replace(part, name=f"{prefix}{part.name}") for part in stored]
    return parts_by_name


def left_in_files(module: torch.nn.Module) -> dict[str, list[StoredPart]]:
    """The buffers that a model of transformers makes itself, such as BERT's `position_ids`.

    Files of older releases have them, but `from_pretrained` does not read them.

    Returns:
        The tensor of such a file, by the name of the buffer in the module.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return {}
    parts_by_name: dict[str, list[StoredPart]] = {}
    for path, child in module.named_modules():
        if isinstance(child, transformers.PreTrainedModel):
            state = child.state_dict().keys()
            unsaved_buffers = {
                name: buffer for name, buffer in child.named_buffers(remove_duplicate=False) if name not in state
            }
            for name in (f"{path}.{buffer_name}" if path else buffer_name for buffer_name in unsaved_buffers):
                shape = list(module.get_buffer(name).shape)
                parts_by_name[name] = [StoredPart(name, tuple(shape), _empty(shape).stride(), 0)]
    return parts_by_name


def _parts(model: Any) -> dict[str, list[StoredPart]]:
    """The parts of the tensors of a model of transformers."""
    from transformers.core_model_loading import revert_weight_conversion

    state = {name: x for name, x in model.state_dict().items() if isinstance(x, torch.Tensor)}
    empty = {name: _empty(list(tensor.shape)) for name, tensor in state.items()}
    owners = {tensor.untyped_storage()._cdata: name for name, tensor in empty.items()}
    with _Views() as views:
        saved = revert_weight_conversion(model, empty)
    parts_by_owner: dict[str, list[StoredPart]] = {}
    for name, tensor in saved.items():
        for part, slice_of_tensor in views.pieces(tensor):
            owner = owners.get(part.untyped_storage()._cdata)
            if owner is not None:
                stored = StoredPart(name, tuple(part.shape), part.stride(), part.storage_offset(), slice_of_tensor)
                parts_by_owner.setdefault(owner, []).append(stored)
    return {
        name: stored_parts
        for name, stored_parts in parts_by_owner.items()
        if _is_other_form(name, stored_parts, empty[name])
    }


def _empty(shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _is_other_form(name: str, stored: list[StoredPart], tensor: torch.Tensor) -> bool:
    """Whether parts fill a tensor, but are not the tensor itself under its own name."""
    complete = sum(_empty(part.shape).numel() for part in stored) == tensor.numel()
    itself = len(stored) == 1 and stored[0].name == name and stored[0].is_whole(list(tensor.shape))
    return complete and not itself


class _Views(TorchFunctionMode):  # type: ignore[misc]
    """Makes `contiguous` return the tensor itself, so that its parts stay views. Notes the tensors that `cat` joins."""

    def __init__(self) -> None:
        super().__init__()
        self._joins: list[tuple[torch.Tensor, list[torch.Tensor], int]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.contiguous:
            return args[0]
        result = function(*args, **(kwargs or {}))
        if function is torch.cat:
            arguments = {"dim": 0, **dict(zip(("tensors", "dim"), args, strict=False)), **(kwargs or {})}
            self._joins.append((result, list(arguments["tensors"]), arguments["dim"] % result.dim()))
        return result

    def pieces(self, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[int, int, int] | None]]:
        """The tensors that `cat` joined to a tensor, each with its slice; the tensor itself if nothing was joined."""
        join = next((candidate for candidate in self._joins if candidate[0] is tensor), None)
        if join is None:
            yield tensor, None
            return
        _, parts, dim = join
        start = 0
        for part in parts:
            yield part, (dim, start, tensor.shape[dim])
            start += part.shape[dim]
