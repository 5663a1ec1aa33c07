"""Describes the parameters and buffers of a module, and the tensors in its weights files."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from etbuild.model.module import named_tensors
from etbuild.model.stored_parts import left_in_files, parts
from etbuild.model.tensor_bytes import dtype_name
from etbuild.model.tensor_facts import StoredPart, TensorFacts
from etbuild.model.tied_weights import memory


def describe(module: torch.nn.Module, weights: bool) -> list[TensorFacts]:
    """Describes the parameters and buffers of a module, in the order of the module.

    Args:
        module: The module.
        weights: Whether the content of its state dict comes from weights files.
    """
    state = module.state_dict(keep_vars=True).values() if weights else []
    loaded = {memory(each) for each in state if isinstance(each, torch.Tensor)}
    stored, first = {**left_in_files(module), **parts(module)} if weights else {}, dict[Hashable, str]()
    return [_facts(name, x, first, memory(x) in loaded, stored) for name, x in named_tensors(module).items()]


def describe_state(module: torch.nn.Module) -> list[TensorFacts]:
    """Describes the tensors that weights files must contain for `load_state_dict`, by the names of the state dict; and
    tensors that they may contain, but that nothing reads."""
    # Entries of `get_extra_state` are not tensors, and safetensors cannot hold them.
    stored = {name: x for name, x in module.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    in_files, first = parts(module), dict[Hashable, str]()
    unread = {name: parts_of_buffer for name, parts_of_buffer in left_in_files(module).items() if name not in stored}
    entries = [_facts(name, tensor, first, True, in_files) for name, tensor in stored.items()]
    return entries + [_facts(name, module.get_buffer(name), {}, False, unread) for name in unread]


def _facts(
    name: str,
    tensor: torch.Tensor,
    first: dict[Hashable, str],
    in_weights: bool,
    stored: Mapping[str, list[StoredPart]],
) -> TensorFacts:
    """The facts about a tensor.

    Args:
        name: A name of the tensor.
        tensor: The tensor.
        first: The first name of each tensor, by its memory. A new tensor is added.
        in_weights: Whether its content comes from weights files.
        stored: By name, the parts of the tensors that weights files hold in another form.
    """
    same_as = first.setdefault(memory(tensor), name)
    return TensorFacts(
        name,
        dtype_name(tensor.dtype),
        list(tensor.shape),
        isinstance(tensor, torch.nn.Parameter),
        None if same_as == name else same_as,
        in_weights,
        stored_as=stored.get(name, []),
    )
