"""Gives a codec of sounds two entries. `encode(waveform)` takes a sound, float [1, channels, samples], and returns its
codes, int64. `decode(codes)` returns the sound."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from etbuild.errors import InputError
from etbuild.model.module import set_methods
from etbuild.plan.parts import ModelExample
from etplugins.transformers.huggingface_config import PATH
from etplugins.transformers.parts import HuggingFace

_PADDING, _NUMBERS = "_get_extra_padding_for_conv1d", ("kernel_size", "stride", "padding_total")
"""The method of a convolution that pads a sound, and what it computes with: transformers has tensors of one number. An
export does not know their values."""
_CODES, _SOUND, _SCALES = "audio_codes", "audio_values", "audio_scales"

Entries = dict[str, Callable[..., torch.Tensor]]


def add(model: Any, settings: HuggingFace) -> Entries:
    """Makes the entries.

    Args:
        model: The model.
        settings: The model in the plan.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The class is no codec.
    """
    cls = type(model)
    decoding = getattr(cls, "decode", None)
    if not hasattr(cls, "encode") or decoding is None or _CODES not in inspect.signature(decoding).parameters:
        message = f"`{cls.__name__}` is no codec: it has no `encode` and `decode` with `{_CODES}`"
        raise InputError.at((*PATH, "task"), message, "choose a class such as EncodecModel, MimiModel or DacModel")
    for layer in (each for each in model.modules() if hasattr(each, _PADDING)):
        numbers = {name: int(getattr(layer, name)) for name in _NUMBERS}
        for name, number in numbers.items():
            layer._buffers.pop(name, None)
            setattr(layer, name, number)
        set_methods(layer, **{_PADDING: _padding})
    has_scales = _SCALES in inspect.signature(decoding).parameters

    def encode(self: Any, waveform: torch.Tensor) -> torch.Tensor:
        with _nothing_kept(self):
            found = cls.encode(self, waveform, return_dict=True)
        if any(each is not None for each in getattr(found, _SCALES, None) or ()):
            message = f"`{cls.__name__}` divides each part of a sound by its loudness, which its codes do not have"
            raise InputError.at((*PATH, "task"), message, "write a factory whose `encode` returns both")
        codes: torch.Tensor = getattr(found, _CODES)
        return codes

    def decode(self: Any, codes: torch.Tensor) -> torch.Tensor:
        scales = {_SCALES: [None] * codes.shape[0]} if has_scales else {}
        with _nothing_kept(self):
            found = cls.decode(self, **{_CODES: codes}, **scales, return_dict=True)
        sound: torch.Tensor = getattr(found, _SOUND)
        return sound

    return {"encode": encode, "decode": decode, "example_of_part": _example_of_part}


@contextmanager
def _nothing_kept(model: torch.nn.Module) -> Iterator[None]:
    """Removes what layers compute and keep for later calls within this context, such as Mimi's vectors of codes. A
    method of a program reads nothing that another one has computed."""
    empty = [(layer, [name for name, value in vars(layer).items() if value is None]) for layer in model.modules()]
    try:
        yield
    finally:
        for layer, names in empty:
            for name in names:
                setattr(layer, name, None)


def _padding(layer: Any, sound: torch.Tensor) -> int:
    """How many samples follow a sound, so that its last frame is whole."""
    rest: int = sound.shape[-1] - layer.kernel_size + layer.padding_total
    return -rest % int(layer.stride)


def _example_of_part(model: Any, example_plan: ModelExample) -> torch.Tensor:
    """A sound with zeros, or its codes."""
    if example_plan.length is None:
        message = f"the configuration of `{type(model).__name__}` does not say the length of a sound"
        hint = "add `max_source_length: 24000`: the number of samples in each call"
        raise InputError.at((*PATH, "task"), message, hint)
    waveform = torch.zeros((1, getattr(model.config, "audio_channels", 1), example_plan.length), dtype=model.dtype)
    if example_plan.of_model == "sound":
        return waveform
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        codes = model.encode(mode.from_tensor(waveform))
    return torch.zeros(tuple(codes.shape), dtype=codes.dtype)
