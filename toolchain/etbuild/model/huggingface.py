"""Makes a module from a Hugging Face configuration and a class of `transformers`.

It downloads nothing. The module's inputs and results are tensors, so that only the export needs `transformers`.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath, InputError
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import wrap_user_error
from etbuild.model.huggingface_config import PATH as _PATH
from etbuild.model.huggingface_config import is_auto, make_config, nearest
from etbuild.plan.parts import HuggingFace
from etbuild.processes.random_seeds import seed

_NO_NETWORK = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def create(wanted: HuggingFace, first_seed: int, context: StepContext, dtype: str | None = None) -> torch.nn.Module:
    """Makes the module with random weights. Parameters have the names that `save_pretrained` writes.

    Args:
        wanted: The class and the configuration.
        first_seed: The seed for the random weights.
        context: The declared inputs of the step, which may contain the configuration.
        dtype: PyTorch's name of the dtype of the weights; None for that of the configuration.

    Raises:
        InputError: The class or a key of the configuration is unknown, or the configuration's file cannot be read.
        BuildError: `transformers` is missing, or refuses the configuration.
    """
    transformers = _import()
    cls = _class(transformers, wanted.model_class)
    seed(first_seed)
    with wrap_user_error((*_PATH, "config"), f"making a `{wanted.model_class}` of the configuration", context.finder):
        config = make_config(transformers, cls, wanted.config, context.inputs)
        given = {} if dtype is None else {"dtype": getattr(torch, dtype)}
        make = functools.partial(cls.from_config, trust_remote_code=False) if is_auto(cls) else cls._from_config
        model = make(config, **given)
        if wanted.cache_length is None:
            _return_tensors(model)
        else:
            _add_cache(model, wanted.cache_length)
    return model


def _import() -> ModuleType:
    os.environ.update(_NO_NETWORK)  # transformers reads these when it is imported
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        hint = "pip install 'etbuild[huggingface]'; in Bazel, add \"huggingface\" to the `extras` of the packages"
        message = f"`huggingface` needs transformers, which cannot be imported: {error}"
        raise BuildError.at(_PATH, message, hint) from None


def _class(transformers: ModuleType, name: str) -> Any:
    """The class of `transformers` with this name.

    Raises:
        InputError: There is no such class of models.
    """
    known = [word for word in dir(transformers) if "Model" in word or "For" in word]
    found = getattr(transformers, name, None) if name in known else None
    if found is None or not (is_auto(found) or hasattr(found, "_from_config")):
        raise InputError.at((*_PATH, "class"), f"transformers has no model `{name}`", nearest(name, known))
    return found


def _return_tensors(model: Any) -> None:
    """Makes the module return its results as a tuple, because a program cannot return the classes of transformers.

    It also turns off the cache, so that the cache is not among the results.
    """
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False
    original = type(model).forward

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **keywords: Any) -> tuple[Any, ...]:
        results = original(self, *inputs, **keywords, return_dict=True)
        return tuple(value for value in results.to_tuple() if value is not None)

    _set_forward(model, forward)


def _set_forward(model: Any, forward: Callable[..., Any]) -> None:
    """Gives the model a new class with this `forward`.

    A function set on the instance would not do: every copy of the model would call it with the original model.
    """
    kind = type(model)
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _add_cache(model: Any, max_length: int) -> None:
    """Gives a decoder buffers for a cache, and a `forward(input_ids, cache_position)` that returns the logits.

    `input_ids` is int64 [1, seq]. `cache_position` is int64 [1]: the position of the first of these tokens.

    Args:
        model: The model. It is changed in place.
        max_length: The number of tokens that the cache can hold.

    Raises:
        InputError: The model is not a decoder with a cache of keys and values, or `max_length` is too large for it.
    """
    from transformers import StaticCache
    from transformers.configuration_utils import get_head_shapes

    config = model.config.get_text_config(decoder=True)
    _check_cache(model, config, max_length)
    cache = StaticCache(config=config, max_cache_len=max_length)
    cache.layers = [_plain_layer(layer, max_length) for layer in cache.layers]
    cache.early_initialization(1, *get_head_shapes(config), model.dtype, torch.device("cpu"))
    for index, layer in enumerate(cache.layers):
        model.register_buffer(f"key_cache_{index}", layer.keys, persistent=False)
        model.register_buffer(f"value_cache_{index}", layer.values, persistent=False)
        layer.keys = layer.values = None  # the buffers hold them; `forward` sets them for each call
    original = type(model).forward
    model.etbuild_cache = cache

    def forward(self: Any, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
        layers = self.etbuild_cache.layers
        for index, layer in enumerate(layers):
            layer.keys, layer.values = getattr(self, f"key_cache_{index}"), getattr(self, f"value_cache_{index}")
            layer.cumulative_length = cache_position[0].clone()
        try:
            return original(self, input_ids=input_ids, past_key_values=self.etbuild_cache, use_cache=True).logits
        finally:
            for layer in layers:  # otherwise a copy of the model would contain traced tensors
                layer.keys = layer.values = layer.cumulative_length = None

    _set_forward(model, forward)


def _plain_layer(layer: Any, max_length: int) -> Any:
    """A cache layer that keeps every token at its position.

    It replaces a layer with a sliding window, which does the same as long as its window is not full.

    Raises:
        InputError: The layer caches something other than keys and values.
    """
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    if type(layer) is StaticSlidingWindowLayer:
        return StaticLayer(max_length)
    if type(layer) is not StaticLayer:
        message = f"a layer of the model caches something other than keys and values: {type(layer).__name__}"
        raise InputError.at((*_PATH, "cache"), message, "leave out `cache`, or write a factory for this model")
    return layer


def _check_cache(model: Any, config: Any, max_length: int) -> None:
    path: DocumentPath = (*_PATH, "cache")
    if not model.can_generate() or config.is_encoder_decoder:
        message = f"`{type(model).__name__}` is not a decoder with a cache"
        raise InputError.at(path, message, "leave out `cache`, or choose a class such as LlamaForCausalLM")
    limits = {"max_position_embeddings": getattr(config, "max_position_embeddings", None)}
    limits["sliding_window"] = getattr(config, "sliding_window", None)  # transformers moves entries of a full window
    for name, limit in limits.items():
        if limit is not None and max_length > limit:
            message = f"max_length {max_length} is more than the configuration's `{name}` {limit}"
            raise InputError.at((*path, "max_length"), message, f"write {limit} or less")
