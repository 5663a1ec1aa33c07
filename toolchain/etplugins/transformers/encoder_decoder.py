"""Gives a model with an encoder and a decoder two entries, as ExecuTorch's runner calls them.

`encode(input)` takes tokens, int64 [1, source], features of speech, or an image, and returns the encoder's output,
float [1, source, hidden]. `decode(tokens, encoder_output, position)` takes tokens, int64 [1, seq], the result of
`encode`, and the position of the first token, int64 [1]. It keeps keys and values of the tokens in a cache, and returns
scores: float [1, vocabulary] of the last token, or [1, seq, vocabulary] of all tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.plan.parts import ModelExample
from etplugins.transformers import single_call, static_cache
from etplugins.transformers.families import family
from etplugins.transformers.parts import DecoderCache, HuggingFace

_PATH: DocumentPath = ("model", "huggingface")
_TARGET_LENGTHS = ("max_target_positions", "max_position_embeddings")
_SOURCE_LENGTHS = ("max_source_positions", "max_position_embeddings")
"""The keys of configurations for the longest text. A model may have no limit."""

_IMAGE = "pixel_values"
_WAVEFORM, _SECOND = "input_values", 16000
"""The name of an encoder's input that is a waveform, and the number of samples of one second."""

_WINDOWS = "sliding_windows"
"""The key of an encoder's configuration for the frames that each layer attends to. transformers reads it only if the
encoder gets a mask, which its processors make."""

Entries = dict[str, Callable[..., torch.Tensor]]


def add(model: Any, settings: HuggingFace, cache: DecoderCache) -> Entries:
    """Adds the buffers of a cache to a model with an encoder and a decoder.

    Args:
        model: The model. It is changed in place.
        settings: The model in the plan.
        cache: The cache of the decoder.

    Returns:
        The new methods for the class of the model, by name.

    Raises:
        InputError: The model has no encoder, its encoder does not fit the task, or a length does not fit the model.
    """
    _check(model, settings, cache)
    output_class = _output_class(model)
    static_cache.add(model, decoder_config(model.config), cache.max_length)
    last = settings.logits == "last"
    original = type(model).forward

    def encode(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        encoder = self.get_encoder()
        encoder_inputs = {encoder.main_input_name: inputs}
        if getattr(encoder.config, _WINDOWS, None) is not None:
            encoder_inputs["attention_mask"] = torch.ones_like(inputs, dtype=torch.int64)
        output: torch.Tensor = encoder(**encoder_inputs, return_dict=True).last_hidden_state
        return output

    def decode(
        self: Any, tokens: torch.Tensor, encoder_output: torch.Tensor, cache_position: torch.Tensor
    ) -> torch.Tensor:
        with static_cache.calling(self, cache_position) as self_cache, _only_output(self):
            result = original(
                self,
                encoder_outputs=output_class(last_hidden_state=encoder_output),
                decoder_input_ids=tokens,
                past_key_values=EncoderDecoderCache(
                    self_cache, Cache(layers=[_UncachedLayer() for _ in self_cache.layers])
                ),
                use_cache=True,
                return_dict=True,
            )
        scores: torch.Tensor = result.logits
        return scores[:, -1] if last else scores

    return {"encode": encode, "decode": decode}


def _output_class(model: Any) -> Any:
    """The class of the output that the decoder reads. It is the encoder's own class if the encoder takes a waveform,
    and returns only states without padding. Moonshine's class has a mask, which is then None."""
    from torch._subclasses import FakeTensorMode

    if model.get_encoder().main_input_name != _WAVEFORM:
        return BaseModelOutput
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        sound = mode.from_tensor(torch.zeros((1, _SECOND), dtype=model.dtype))
        output = model.get_encoder()(sound, return_dict=True)
    return type(output) if output.keys() == {"last_hidden_state"} else BaseModelOutput


@contextmanager
def _only_output(model: Any) -> Iterator[None]:
    """Raises BuildError if a decoder reads more of an encoder's results than its output within this context."""
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, BaseModelOutput):
            raise
        message = f"the decoder of `{type(model).__name__}` needs more than the encoder's output: `{error.name}`"
        raise BuildError.at((*_PATH, "task"), message, "write a factory for this model") from error


def decoder_config(config: Any) -> Any:
    """The configuration of the decoder, with its number of layers, which transformers leaves out for a T5."""
    decoder = config.get_text_config(decoder=True)
    if getattr(config, "num_decoder_layers", None) is not None:
        decoder = copy.deepcopy(decoder)
        decoder.num_hidden_layers = config.num_decoder_layers
    return decoder


class _UncachedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """A layer of a cache that keeps nothing: each call computes keys and values of the encoder's output."""

    is_compileable = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: there are no buffers."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def _check(model: Any, settings: HuggingFace, cache: DecoderCache) -> None:
    name, config = type(model).__name__, model.config
    if not (model.can_generate() and config.is_encoder_decoder and hasattr(model, "get_encoder")):
        hint = "write `task: text-generation`, or choose a class such as T5ForConditionalGeneration"
        raise InputError.at((*_PATH, "task"), f"`{name}` is not an encoder and a decoder of text", hint)
    if why := family(config.model_type).no_static_cache:
        raise InputError.at((*_PATH, "task"), f"`{name}` {why}", "write a factory for this model")
    input_name = model.get_encoder().main_input_name
    fitting_task = {"input_ids": "seq2seq", "pixel_values": "image-to-text"}.get(input_name, "speech-to-text")
    if settings.task != fitting_task:
        raise InputError.at(
            (*_PATH, "task"), f"the encoder of `{name}` takes `{input_name}`", f"write `task: {fitting_task}`"
        )
    encoder = getattr(model.get_encoder(), "config", config)
    _check_length("cache.max_length", cache.max_length, (decoder_config(config), config), _TARGET_LENGTHS)
    if input_name == "input_ids":
        _check_length("max_source_length", settings.max_source_length, (encoder, config), _SOURCE_LENGTHS)
    elif settings.max_source_length is not None and input_name != _WAVEFORM:
        message = f"the encoder of `{name}` takes `{input_name}`, whose length the configuration says"
        raise InputError.at((*_PATH, "max_source_length"), message, "remove `max_source_length`")


def _check_length(setting: str, length: int | None, configs: tuple[Any, ...], keys: tuple[str, ...]) -> None:
    """Checks a length of the manifest against the first limit that a configuration has under one of the keys.

    `configs` are the configurations of the encoder or decoder, and of the whole model.
    """
    limits = [(key, getattr(config, key, None)) for config in configs for key in keys]
    key, limit = next((entry for entry in limits if type(entry[1]) is int), ("", None))
    if length is not None and limit is not None and length > limit:
        message = f"{setting} {length} is more than the configuration's `{key}` {limit}"
        raise InputError.at((*_PATH, *setting.split(".")), message, f"write {limit} or less")


def example(model: Any, example_plan: ModelExample, path: DocumentPath) -> torch.Tensor:
    """An example input of one of the entries, with zeros.

    Args:
        model: The model.
        example_plan: The input in the plan.
        path: The document path of the input.

    Raises:
        InputError: The configuration does not say the shape of the input.
    """
    is_sound = model.get_encoder().main_input_name == _WAVEFORM
    dtype = model.dtype if is_sound else torch.int64
    inputs = _features(model) if example_plan.length is None else torch.zeros((1, example_plan.length), dtype=dtype)
    if inputs is None:
        message = f"the configuration of `{type(model).__name__}` does not say the shape of this input"
        hint = "write `example_inputs` for `encoder` and for `text_decoder`"
        hint += ", or `max_source_length`: the samples of a sound" if is_sound else ""
        raise InputError.at(path[:2], message, hint)
    return inputs if example_plan.of_model == "features" else _encoded(model, inputs)


def _features(model: Any) -> torch.Tensor | None:
    """An image, or the longest features of speech that the encoder takes, with zeros; None if the configuration does
    not say the shape."""
    config = model.config
    if model.get_encoder().main_input_name == _IMAGE:
        shape = single_call.image(model.get_encoder().config)
        return None if shape is None else torch.zeros(shape, dtype=model.dtype)
    positions, bins = getattr(config, "max_source_positions", None), getattr(config, "num_mel_bins", None)
    if positions is not None and bins is not None:  # Whisper
        return torch.zeros((1, bins, 2 * positions), dtype=model.dtype)
    bins = getattr(config, "input_feat_per_channel", None)
    if positions is not None and bins is not None:  # Speech2Text
        return torch.zeros((1, positions, bins * config.input_channels), dtype=model.dtype)
    return None


def _encoded(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Zeros in the shape of the encoder's output."""
    from torch._subclasses import FakeTensorMode

    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shape = model.encode(mode.from_tensor(inputs)).shape
    return torch.zeros(tuple(shape), dtype=model.dtype)
