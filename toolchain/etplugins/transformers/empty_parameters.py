"""Makes a model of transformers without random numbers in its parameters, which are loaded afterwards.

A billion random numbers take seconds. They also take more memory than the model needs: embeddings are tied only after
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
    """Within this context, PyTorch's functions that fill tensors do nothing to parameters. They still fill buffers,
    which a checkpoint may lack."""
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
        return tensor if isinstance(tensor, torch.nn.Parameter) else fill(tensor, *arguments, **keywords)

    return run
