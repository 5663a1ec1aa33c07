"""A loop over the tokens of a call, whose number is not known when a method is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Step = Callable[[torch.Tensor, Sequence[Any]], tuple[torch.Tensor, torch.Tensor]]
"""Computes one token: of the state before it and its inputs, the state after it and its output."""


def each_token(step: Step, state: torch.Tensor, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes tokens one after the other. An exported method has a `scan`, which ExecuTorch runs as a loop.

    Args:
        step: Computes one token.
        state: The state before the first token.
        inputs: What the step needs for all tokens, [seq, ...] each.

    Returns:
        The state after the last token, and the outputs of all tokens, [seq, ...].
    """
    from torch._higher_order_ops.scan import scan
    from torch.fx.experimental import _config

    length = inputs[0].shape[0]
    if isinstance(length, torch.SymInt) or (length > 1 and torch.compiler.is_exporting()):
        with _config.patch(use_duck_shape=False):  # the example may have as many tokens as a state has values
            after, outputs = scan(step, state, list(inputs))
        return after, outputs
    made = []
    for index in range(length):
        state, output = step(state, [each[index] for each in inputs])
        made.append(output)
    return state, torch.stack(made)
