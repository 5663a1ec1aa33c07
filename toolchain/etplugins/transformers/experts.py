"""Computes mixtures of experts one expert at a time.

transformers holds the weights of all experts of a layer in one parameter of three dimensions. Its own functions copy
the weights of all experts that the tokens of a call choose. Here, the weights of one expert at a time are copied or
dequantized.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface, batched_mm_experts_forward

from etplugins.transformers import other_mixtures
from etplugins.transformers.token_loop import for_each_token

_NAME = "executorch_one_at_a_time"


def choose(model: Any) -> None:
    """Lets the mixtures of a model compute their experts one at a time.

    Args:
        model: The model of transformers.
    """
    ExpertsInterface.register(_NAME, _one_at_a_time)
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part._can_set_experts_implementation():
            part.set_experts_implementation(_NAME)
    other_mixtures.choose(model)


def restore(model: Any) -> None:
    """Lets the mixtures of a model compute their experts as transformers does.

    Args:
        model: The model of transformers.
    """
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part._can_set_experts_implementation():
            part.set_experts_implementation("eager")
    other_mixtures.restore(model)


def _one_at_a_time(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The sum of the experts of each token, [seq, hidden].

    Args:
        self: The experts.
        hidden_states: The tokens, [seq, hidden].
        top_k_index: The experts of each token, int64 [seq, experts].
        top_k_weights: The weights of these experts, [seq, experts].
    """

    def step(before: torch.Tensor, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        token, experts, weights = inputs
        outputs = [
            batched_mm_experts_forward(self, token.unsqueeze(0), expert.view(1, 1), weight.view(1, 1))
            for expert, weight in zip(experts, weights, strict=True)
        ]
        return before.clone(), functools.reduce(torch.add, outputs)[0]

    _, outputs = for_each_token(step, torch.zeros(1), [hidden_states, top_k_index, top_k_weights])
    return outputs
