"""Makes a model of transformers without the random numbers of its parameters, which are loaded afterwards.

Drawing them takes seconds for each billion, and more memory than the model needs: tied embeddings are only tied when
they are filled.
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
    """Returns a context manager in which PyTorch's functions that fill tensors leave parameters as they are. They fill
    buffers, because a checkpoint need not hold those."""
    from transformers.initialization import TORCH_INIT_FUNCTIONS  # transformers calls them by this table

    filling = dict(TORCH_INIT_FUNCTIONS)
    with contextlib.ExitStack() as stack:
        stack.callback(TORCH_INIT_FUNCTIONS.update, filling)
        for name, fill in filling.items():
            TORCH_INIT_FUNCTIONS[name] = _but_parameters(fill)
            stack.enter_context(replaced(torch.nn.init, name, TORCH_INIT_FUNCTIONS[name]))
        yield


def _but_parameters(fill: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fill)
    def run(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        return tensor if isinstance(tensor, torch.nn.Parameter) else fill(tensor, *arguments, **keywords)

    return run
