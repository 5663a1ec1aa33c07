"""A loop over the tokens of a call, whose number is unknown when a method is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Step = Callable[[torch.Tensor, Sequence[Any]], tuple[torch.Tensor, torch.Tensor]]
"""Computes one token. Takes the state before the token and the token's inputs, and returns the state after it and its
output."""


def for_each_token(
    step: Step, state: torch.Tensor, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes tokens one after the other. An exported method has a `scan`, which ExecuTorch runs as a loop.

    Args:
        step: Computes one token.
        state: The state before the first token.
        inputs: The inputs of all tokens, each [seq, ...].

    Returns:
        The state after the last token, and the outputs of all tokens, [seq, ...].
    """
    from torch._higher_order_ops.scan import scan
    from torch.fx.experimental import _config

    length = inputs[0].shape[0]
    if isinstance(length, torch.SymInt) or (length > 1 and torch.compiler.is_exporting()):
        with _config.patch(use_duck_shape=False):  # the number of tokens may happen to equal a size of the state
            after, outputs = scan(step, state, list(inputs))
        return after, outputs
    output_list = []
    for index in range(length):
        state, output = step(state, [sequence[index] for sequence in inputs])
        output_list.append(output)
    return state, torch.stack(output_list)
