"""Finds how transformers stores the tensors of a model that have other names or shapes in its files.

`save_pretrained` writes many models in the form of their first release, as hubs have them: with other names, or one
tensor for each expert where the module holds those of all experts in one, or one for queries, keys and values that the
module holds apart. `from_pretrained` undoes that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from etbuild.model.tensor_files import TensorFile


@dataclass(frozen=True)
class StoredPart:
    """A tensor of a file, or a slice of one, that is a tensor of the module, or a part of one.

    Attributes:
        name: Its name in the file.
        shape: Its sizes.
        strides: For each dimension, the elements of the module's tensor from one index to the next.
        offset: The place of its first element in the module's tensor, which is row-major.
        slice: If it is a slice of the file's tensor: the dimension, the index of its beginning, and the size of the
            whole dimension. None for all of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    slice: tuple[int, int, int] | None = None

    def facts(self) -> dict[str, Any]:
        """Its fields as JSON data, which `from_facts` accepts."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> StoredPart:
        """What `facts` returned."""
        piece = facts.get("slice")
        place = None if piece is None else (piece[0], piece[1], piece[2])
        return cls(facts["name"], tuple(facts["shape"]), tuple(facts["strides"]), facts["offset"], place)

    @property
    def shape_in_file(self) -> list[int]:
        """The sizes of the file's tensor."""
        sizes = list(self.shape)
        if self.slice is not None:
            sizes[self.slice[0]] = self.slice[2]
        return sizes

    def taken_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """What it is of the file's tensor: a view."""
        if self.slice is None:
            return tensor
        dim, start, _ = self.slice
        return tensor.narrow(dim, start, self.shape[dim])

    def is_whole(self, shape: list[int]) -> bool:
        """Whether it is all of a tensor with these sizes, and all of the file's tensor."""
        return self.slice is None and (self.shape, self.strides, self.offset) == (
            tuple(shape),
            _empty(shape).stride(),
            0,
        )

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of this part of the module's tensor."""
        return tensor.as_strided(self.shape, self.strides, self.offset)


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


class Joined(TensorFile):
    """A tensor of the module that a checkpoint holds in parts. It has the form of a file with this tensor only.

    Args:
        name: The name of the tensor in the module.
        shape: Its sizes.
        stored: Its parts, each with its file and its name there. All have one dtype, and are in files that are checked.
    """

    def __init__(self, name: str, shape: list[int], stored: Sequence[tuple[StoredPart, TensorFile, str]]) -> None:
        super().__init__({name: None})
        self._shape, self._stored = shape, stored

    def form(self, name: str) -> tuple[str, list[int]]:
        """The dtype of the parts, and the shape of the whole."""
        _, file, stored = self._stored[0]
        return file.form(stored)[0], self._shape

    def take(self, name: str) -> torch.Tensor:
        """The tensor, joined from its parts."""
        joined = torch.empty(self._shape, dtype=getattr(torch, self.form(name)[0]))
        for part, file, stored in self._stored:
            part.of(joined).copy_(part.taken_from(file.take(stored)))
        return joined
