"""Makes a model of transformers without random numbers in its parameters, which are loaded afterwards.

A billion random numbers take seconds. They also take more memory than the model needs: embeddings are tied only after
they are filled. Parameters that are computed, such as tables of positions, are no weights: a checkpoint lacks them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from etbuild.patching import replaced


@contextlib.contextmanager
def parameters_left_empty() -> Iterator[None]:
    """Within this context, PyTorch's functions that fill tensors do nothing to parameters. They still fill buffers and
    frozen parameters, which a checkpoint may lack."""
    from transformers.initialization import TORCH_INIT_FUNCTIONS  # the table by which transformers calls them

    original_functions = dict(TORCH_INIT_FUNCTIONS)
    with contextlib.ExitStack() as stack:
        stack.callback(TORCH_INIT_FUNCTIONS.update, original_functions)
        for name, fill in original_functions.items():
            TORCH_INIT_FUNCTIONS[name] = _except_parameters(fill)
            stack.enter_context(replaced(torch.nn.init, name, TORCH_INIT_FUNCTIONS[name]))
        yield


def _except_parameters(fill: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fill)
    def run(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        is_weight = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        return tensor if is_weight else fill(tensor, *arguments, **keywords)

    return run


def keep_computed(model: Any) -> None:
    """Makes buffers of the parameters that `save_pretrained` leaves out because the class computes them, as Marian does
    with its tables of positions. Then no checkpoint has to have them.

    Args:
        model: The model of transformers. It is changed in place.
    """
    for name in sorted(model._keys_to_ignore_on_save or ()):
        owner, _, own = name.rpartition(".")
        parent = model.get_submodule(owner)
        if isinstance(tensor := getattr(parent, own, None), torch.nn.Parameter) and not tensor.requires_grad:
            delattr(parent, own)
            parent.register_buffer(own, tensor.detach(), persistent=False)
