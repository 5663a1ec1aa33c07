"""Gives a model with an encoder and a decoder two entries, as ExecuTorch's runner calls them.

`encode(input)` takes tokens, int64 [1, source], features of speech, or an image, and returns the encoder's output,
float [1, source, hidden]. `decode(tokens, encoder_output, position)` takes tokens, int64 [1, seq], the result of
`encode`, and the position of the first token, int64 [1]. It keeps keys and values of the tokens in a cache, and returns
scores: float [1, vocabulary] of the last token, or [1, seq, vocabulary] of all tokens.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.patching import replaced
from etbuild.plan.parts import ModelExample
from etplugins.transformers import decoder_inputs, first_positions, single_call, static_cache
from etplugins.transformers.decoder_inputs import DecoderInputs
from etplugins.transformers.parts import DecoderCache, HuggingFace

_PATH: DocumentPath = ("model", "huggingface")
_TARGET_LENGTHS = ("max_target_positions", "max_position_embeddings")
_SOURCE_LENGTHS = ("max_source_positions", "max_position_embeddings")
"""The keys of configurations for the longest text. A model may have no limit."""

_IMAGE = "pixel_values"
_WAVEFORM, _SECOND = "input_values", 16000
"""The name of an encoder's input that is a waveform, and the number of samples of one second."""

_MASK, _STATES = "attention_mask", "encoder_hidden_states"
_FEW = 16  # tokens of a call with fake tensors

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
    model.eval()  # what the calls below show is for a model that does not train
    encoder, config = _encoder(model, settings), decoder_config(model.config)
    static_cache.add(model, config, cache.max_length)
    last = settings.logits == "last"
    original, writer, cache_length = type(model).forward, _writer(model), cache.max_length
    names = decoder_inputs.positions(getattr(model, writer)) if writer is not None else ()
    first = first_positions.of(getattr(model, writer), cache_length) if writer is not None else 0

    def encode(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _encoded_with(self, inputs, encoder.takes_mask).last_hidden_state
        return output

    def scores(self: Any, tokens: torch.Tensor, states: torch.Tensor, cache: Any) -> torch.Tensor:
        both = EncoderDecoderCache(cache, Cache(layers=[_UncachedLayer() for _ in cache.layers]))
        common = {"past_key_values": both, "use_cache": True, "return_dict": True}
        with _only_output(self):
            if writer is None:
                of_encoder = encoder.output_class(last_hidden_state=states)
                result = original(self, encoder_outputs=of_encoder, decoder_input_ids=tokens, **common)
            else:
                position = cache.get_seq_length() + first if first else cache.get_seq_length()
                places = decoder_inputs.make(names, tokens.shape[1], position, cache_length)
                result = getattr(self, writer)(input_ids=tokens, **{_STATES: states}, **places, **common)
        found: torch.Tensor = result.logits
        return found

    inputs = _decoder_inputs(model, config, cache.max_length, encoder, scores)
    model.etbuild_cache.number_up_to = cache.max_length if inputs.number else None

    def decode(
        self: Any, tokens: torch.Tensor, encoder_output: torch.Tensor, cache_position: torch.Tensor
    ) -> torch.Tensor:
        with static_cache.calling(self, cache_position, inputs.only_written, masks=True) as self_cache:
            found = scores(self, tokens, encoder_output, self_cache)
        return found[:, -1] if last else found

    return {"encode": encode, "decode": decode}


@dataclass(frozen=True)
class _Encoder:
    """What a call of an encoder with fake tensors shows.

    Attributes:
        takes_mask: Whether the encoder gets a mask, which hides nothing.
        output_class: The class of the output that the decoder reads: the encoder's own class if it has only states
            without padding. Other values in it are then None, such as Moonshine's mask and the routes of experts.
        states: The shape of the output; None if the call failed.
    """

    takes_mask: bool
    output_class: Any = BaseModelOutput
    states: tuple[int, ...] | None = None


def _encoder(model: Any, settings: HuggingFace) -> _Encoder:
    """What an encoder needs. In an export, transformers leaves out masks that hide nothing, but LongT5's encoder reads
    its mask."""
    from torch._subclasses import FakeTensorMode

    always = getattr(getattr(encoder_of(model), "config", None), _WINDOWS, None) is not None
    inputs = _example_of_encoder(model, settings)
    for takes_mask in () if inputs is None else (True,) if always else (False, True):
        exporting = replaced(torch.compiler, "is_compiling", lambda: True)
        try:
            with torch.no_grad(), exporting, FakeTensorMode(allow_non_fake_inputs=True) as mode:
                output = _encoded_with(model, mode.from_tensor(inputs), takes_mask)
        except Exception:  # noqa: BLE001 - the export shows the error
            continue
        others = {name for name, value in output.items() if value is not None} - {"last_hidden_state"}
        kind = BaseModelOutput if others - ({_MASK} if takes_mask else set()) else type(output)
        return _Encoder(takes_mask, kind, tuple(output.last_hidden_state.shape))
    return _Encoder(always)


def _example_of_encoder(model: Any, settings: HuggingFace) -> torch.Tensor | None:
    """An input of the encoder with zeros; None if its shape is not known."""
    name = _input_name(model)
    if name == "input_ids":
        return torch.zeros((1, min(_FEW, settings.max_source_length or _FEW)), dtype=torch.int64)
    return torch.zeros((1, _SECOND), dtype=model.dtype) if name == _WAVEFORM else _features(model)


def _writer(model: Any) -> str | None:
    """The name of the child that writes, in a pair of models that transformers does not call an encoder and a decoder,
    such as BLIP. None for others."""
    children = () if model.config.is_encoder_decoder else model.named_children()
    return next(
        (name for name, child in children if getattr(child, "can_generate", bool)() and _reads_states(child)), None
    )


def _reads_states(model: Any) -> bool:
    return _STATES in inspect.signature(type(model).forward).parameters


def encoder_of(model: Any) -> Any:
    """The encoder of a model with an encoder and a decoder. In a pair, it takes the main input of both."""
    if _writer(model) is None:
        return model.get_encoder()
    names = ((child, getattr(child, "main_input_name", None)) for child in model.children())
    return next(child for child, name in names if name == model.main_input_name and not _reads_states(child))


def _input_name(model: Any) -> str:
    """The name of the encoder's input. FSMT's encoder does not say it."""
    return str(getattr(encoder_of(model), "main_input_name", model.main_input_name))


def _encoded_with(model: Any, inputs: torch.Tensor, takes_mask: bool) -> Any:
    """The output of the encoder."""
    mask = {_MASK: torch.ones_like(inputs, dtype=torch.int64)} if takes_mask else {}
    return encoder_of(model)(**{_input_name(model): inputs}, **mask, return_dict=True)


def _decoder_inputs(model: Any, config: Any, length: int, encoder: _Encoder, scores: Any) -> DecoderInputs:
    """What the decoder needs besides its tokens and the output of the encoder. Raises InputError if the decoder cannot
    have a cache of a fixed size."""
    shape = encoder.states or (1, _FEW, config.hidden_size)

    def call(copied: Any, tokens: torch.Tensor, cache: Any, position: torch.Tensor) -> object:
        return scores(copied, tokens, torch.zeros(shape, dtype=model.dtype), cache)

    return decoder_inputs.of_pair(model, config, length, call)


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
    count = getattr(config, "num_decoder_layers", None)
    if count is not None and decoder.num_hidden_layers != count:
        decoder = copy.deepcopy(decoder)
        decoder.num_hidden_layers = count
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
    is_pair = config.is_encoder_decoder and hasattr(model, "get_encoder")
    if not (model.can_generate() and (is_pair or _writer(model) is not None)):
        hint = "write `task: text-generation`, or choose a class such as T5ForConditionalGeneration"
        raise InputError.at((*_PATH, "task"), f"`{name}` is not an encoder and a decoder of text", hint)
    input_name = _input_name(model)
    fitting_task = {"input_ids": "seq2seq", "pixel_values": "image-to-text"}.get(input_name, "speech-to-text")
    if settings.task != fitting_task:
        raise InputError.at(
            (*_PATH, "task"), f"the encoder of `{name}` takes `{input_name}`", f"write `task: {fitting_task}`"
        )
    encoder = getattr(encoder_of(model), "config", config)
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
    is_sound = _input_name(model) == _WAVEFORM
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
    if _input_name(model) == _IMAGE:
        shape = single_call.image(encoder_of(model).config)
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
