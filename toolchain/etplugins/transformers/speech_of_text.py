"""Gives a model that speaks a text two entries. Between them, the application repeats what it got for each token.

`encode(tokens, noise)` takes tokens, int64 [1, seq], and normal random numbers, float [1, 2, seq]. It returns means and
logarithms of variances, float [1, seq, channels], and how many frames each token lasts, int64 [1, seq].
`speak(means, variances, noise)` takes these means and logarithms, each repeated for its frames, and normal random
numbers, all float [1, frames, channels]. It returns the sound, float [1, samples].
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from etbuild.errors import InputError
from etbuild.model.module import set_methods
from etbuild.patching import replaced
from etbuild.plan.parts import ModelExample
from etplugins.transformers.huggingface_config import PATH
from etplugins.transformers.parts import HuggingFace

_PARTS = ("text_encoder", "duration_predictor", "flow", "decoder")
_SPLINE, _CHECK = "_unconstrained_rational_quadratic_spline", "torch_compilable_check"
_MULTIPLY = "fused_add_tanh_sigmoid_multiply"
_TO_ABSOLUTE, _TO_RELATIVE = "_relative_position_to_absolute_position", "_absolute_position_to_relative_position"
"""The methods of attention that move numbers to other columns. transformers does so by views whose size is the square
of the number of tokens, which ExecuTorch cannot compute."""

Entries = dict[str, Callable[..., Any]]


def add(model: Any, settings: HuggingFace) -> Entries:
    """Makes the entries.

    Args:
        model: The model.
        settings: The model in the plan.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The class does not speak a text in these steps, or the model has several speakers.
    """
    name, config = type(model).__name__, model.config
    missing = [each for each in _PARTS if not hasattr(model, each)]
    if missing:
        message = f"`{name}` has no `{missing[0]}`, which `task: {settings.task}` needs"
        raise InputError.at((*PATH, "task"), message, "choose a class such as VitsModel, or write a factory")
    if config.num_speakers > 1:
        message = f"`{name}` has {config.num_speakers} speakers, and `task: {settings.task}` chooses none"
        raise InputError.at((*PATH, "task"), message, "write a factory for this model")

    for layer in (each for each in model.modules() if hasattr(each, _TO_ABSOLUTE)):
        set_methods(layer, **{_TO_ABSOLUTE: _absolute, _TO_RELATIVE: _relative})

    def encode(self: Any, tokens: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.ones_like(tokens)[..., None].to(noise.dtype)
        found = self.text_encoder(input_ids=tokens, padding_mask=mask, return_dict=True)
        states, mask = found.last_hidden_state.transpose(1, 2), mask.transpose(1, 2)
        with _without_branches(self, noise):
            if config.use_stochastic_duration_prediction:
                options = {"reverse": True, "noise_scale": self.noise_scale_duration}
                logarithms = self.duration_predictor(states, mask, None, **options)
            else:
                logarithms = self.duration_predictor(states, mask, None)
        durations = torch.ceil(torch.exp(logarithms) * mask * (1.0 / self.speaking_rate))  # rounded as in transformers
        return found.prior_means, found.prior_log_variances, durations[:, 0].to(torch.int64)

    def speak(self: Any, means: torch.Tensor, variances: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        latents = (means + noise * torch.exp(variances) * self.noise_scale).transpose(1, 2)
        mask = torch.ones_like(latents[:, :1])
        with _without_branches(self, noise):
            sound: torch.Tensor = self.decoder(self.flow(latents, mask, None, reverse=True) * mask, None)
        return sound[:, 0]

    return {"encode": encode, "speak": speak, "example_of_part": _example_of_part}


def _absolute(_layer: Any, numbers: torch.Tensor) -> torch.Tensor:
    """Moves the number for each distance, [heads, seq, 2 * seq - 1], to that of each token, [heads, seq, seq]."""
    count = numbers.shape[1]
    places = torch.arange(count)[None] - torch.arange(count)[:, None] + count - 1
    return numbers.gather(2, places.expand(numbers.shape[0], -1, -1))


def _relative(_layer: Any, numbers: torch.Tensor) -> torch.Tensor:
    """Moves the number for each token, [heads, seq, seq], to that of each distance, [heads, seq, 2 * seq - 1]."""
    count = numbers.shape[1]
    places = torch.arange(2 * count - 1)[None] + torch.arange(count)[:, None] - count + 1
    is_token = ((places >= 0) & (places < count)).to(numbers.dtype)
    return numbers.gather(2, places.clamp(0, count - 1).expand(numbers.shape[0], -1, -1)) * is_token


@contextmanager
def _without_branches(model: Any, noise: torch.Tensor) -> Iterator[None]:
    """Within this context, functions of the class compute the same without sizes that depend on values, and take their
    random numbers from `noise`."""
    module = sys.modules[type(model).__module__]
    with ExitStack() as stack:
        stack.enter_context(replaced(torch, "randn", lambda *_: noise))
        for name, new in (
            (_SPLINE, _spline(getattr(module, "_rational_quadratic_spline", None))),
            (_CHECK, lambda *_: None),  # it holds by construction
            (_MULTIPLY, _gated),
        ):
            if hasattr(module, name):
                stack.enter_context(replaced(module, name, new))
        yield


def _gated(one: torch.Tensor, other: torch.Tensor, _channels: object) -> torch.Tensor:
    """Both halves of the channels, multiplied. transformers has their number in a tensor."""
    values, gates = (one + other).chunk(2, dim=1)
    return torch.tanh(values) * torch.sigmoid(gates)


def _spline(inside: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """A function that computes the spline for all inputs, and takes it for those within its bounds. transformers
    computes it for these only, whose number depends on values."""

    def compute(
        inputs: torch.Tensor,
        widths: torch.Tensor,
        heights: torch.Tensor,
        derivatives: torch.Tensor,
        *,
        tail_bound: float,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        smallest = options.get("min_derivative", 1e-3)
        padded = torch.nn.functional.pad(derivatives, (1, 1), value=math.log(math.expm1(1 - smallest)))
        limits = {"min_bin_width": 1e-3, "min_bin_height": 1e-3, "min_derivative": 1e-3, **options}
        within = inputs.abs() <= tail_bound
        bounded = torch.where(within, inputs, torch.zeros_like(inputs))  # at a bound, rounding may leave the last bin
        found, determinants = inside(bounded, widths, heights, padded, tail_bound=tail_bound, **limits)
        return torch.where(within, found, inputs), torch.where(within, determinants, torch.zeros_like(determinants))

    return compute


def _example_of_part(model: Any, example_plan: ModelExample) -> torch.Tensor | None:
    """Zeros for as many frames as the length says."""
    if example_plan.of_model != "encoder_outputs":
        return None
    return torch.zeros((1, example_plan.length or 1, model.config.flow_size), dtype=model.dtype)
