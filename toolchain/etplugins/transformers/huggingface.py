"""Makes a module from a Hugging Face configuration and a class of `transformers`.

Nothing is downloaded. The module's inputs and results are tensors, so that only the export needs `transformers`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch

from etbuild.errors import BuildError, InputError
from etbuild.exception_text import first_cause
from etbuild.extras import install_hint
from etbuild.foreign_errors import from_exception
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import wrap_user_error
from etbuild.model.module import set_methods
from etbuild.plan.parts import ModuleSource
from etbuild.plan.step_plans import ExportPlan
from etbuild.surroundings.random_seeds import seed
from etplugins.transformers import offline, tasks
from etplugins.transformers.empty_parameters import keep_computed, parameters_left_empty
from etplugins.transformers.huggingface_config import PATH as _PATH
from etplugins.transformers.huggingface_config import is_auto, make_config, nearest
from etplugins.transformers.parts import settings_of


def create(source: ModuleSource, context: StepContext, loaded: bool = False) -> torch.nn.Module:
    """Makes the module with random weights. Parameters have the names that `save_pretrained` writes.

    Args:
        source: The class, the configuration, what the task needs, the seed for the random weights, and their dtype.
        context: The declared inputs of the step, which may contain the configuration.
        loaded: Whether all parameters are loaded afterwards, so that their content here does not matter.

    Raises:
        InputError: The class or a key of the configuration is unknown, or the configuration's file cannot be read.
        BuildError: `transformers` is missing, or refuses the configuration.
    """
    settings = settings_of(source)
    assert settings is not None, "the model is one of transformers"
    transformers = _import()
    from etplugins.transformers import (  # imported here, because these import transformers
        audio_codec,
        boxes_of_texts,
        decoder_cache,
        dense,
        encoder_decoder,
        experts,
        image_and_text,
        image_text,
        prompted_masks,
        single_call,
        speech_of_text,
    )

    cls = _class(transformers, settings.model_class)
    seed(source.seed)
    with wrap_user_error((*_PATH, "config"), f"making a `{settings.model_class}` of the configuration"):
        config = make_config(transformers, cls, settings.config, context.inputs)
        if settings.task == "image-text-to-text":
            image_text.check(config)
        with parameters_left_empty() if loaded else nullcontext():
            model = _model(cls, config, decoder_cache.attention(config, settings), source.dtype)
            keep_computed(model)
            dense.add(model, settings.dense)
        experts.choose(model)
        task = None if settings.task is None else tasks.TASKS[settings.task]
        if task is not None and task.outputs:
            set_methods(model, **single_call.add(model, settings))
        elif task is not None and task.parts:
            towers = {"towers": image_and_text, "boxes": boxes_of_texts}
            sounds = {"codec": audio_codec, "speech": speech_of_text}
            of_parts = {**towers, **sounds, "masks": prompted_masks}
            set_methods(model, **of_parts[task.parts].add(model, settings))
        elif settings.cache is None:
            _return_tensors(model)
        elif task is not None and task.has_encoder:
            set_methods(model, **encoder_decoder.add(model, settings, settings.cache))
        elif settings.task == "image-text-to-text":
            set_methods(model, **image_text.add(model, settings, settings.cache))
        else:
            set_methods(model, **decoder_cache.add(model, settings, settings.cache))
    return model


def constants(export_plan: ExportPlan, module: torch.nn.Module, inputs: Given) -> dict[str, object]:
    """The constant methods of the task, and those of the runner's contract or of a cache of the kind `external`.

    Args:
        export_plan: The export plan. Its model is one of transformers.
        module: The model.
        inputs: The declared inputs, which may contain the settings for generating text.

    Raises:
        InputError: The ids of the tokens that end a text are unknown, a token is not in the vocabulary, or a model with
            states should draft or verify.
    """
    from etplugins.transformers import decoder_cache, runner_contract, single_call

    settings = settings_of(export_plan.model)
    assert settings is not None, "the model is one of transformers"
    drafts = [name for name, method in export_plan.methods.items() if method.entry in (tasks.DRAFT, tasks.VERIFY)]
    if drafts and settings.cache is not None and decoder_cache.has_states(module, settings.cache):
        message = "layers with states cannot go back to the last draft that was right"
        raise InputError.at(("methods", drafts[0]), message, "remove the method")
    return {**single_call.constants(module, settings), **runner_contract.constants(export_plan, module, inputs)}


def _model(cls: Any, config: Any, attention: str | None, dtype: str | None) -> Any:
    """Makes the model with random weights. If `attention` or `dtype` is None, transformers chooses it.

    Raises BuildError if the model cannot have ExecuTorch's attention, and KeyError or ValueError if transformers cannot
    make a model of this configuration.
    """
    make = functools.partial(cls.from_config, trust_remote_code=False) if is_auto(cls) else cls._from_config
    if dtype is not None:
        make = functools.partial(make, dtype=getattr(torch, dtype))
    if attention != "custom_sdpa":
        return make(config) if attention is None else make(config, attn_implementation=attention)
    from etplugins.transformers import custom_attention

    custom_attention.register()
    attention_setting: Any = custom_attention.NAME
    if "vision_config" in config.sub_configs:  # ExecuTorch's operators need a cache, and an encoder has none
        attention_setting = {"text_config": attention_setting}
    original = copy.deepcopy(config)  # transformers writes the attention into the configuration
    try:
        return make(config, attn_implementation=attention_setting)
    except (KeyError, ValueError) as error:
        if not _works_otherwise(make, original):
            raise  # the attention is not the cause
        raise custom_attention.unsupported("transformers allows it no other attention") from error


def _works_otherwise(make: Callable[..., Any], config: Any) -> bool:
    """Whether transformers can make the model with its own choice of attention. The weights take no memory."""
    try:
        with torch.device("meta"):
            make(config)
    except Exception:  # noqa: BLE001 - the caller raises the error of its own attempt
        return False
    return True


def _import() -> ModuleType:
    try:
        return offline.transformers()
    except ImportError as error:
        message = f"`huggingface` needs transformers, which cannot be imported: {error}"
        raise BuildError.at(_PATH, message, install_hint("huggingface")) from None


def _class(transformers: ModuleType, name: str) -> Any:
    """The class of `transformers` with this name. Raises InputError if there is no such class of models, and BuildError
    if its module cannot be imported."""
    known = dir(transformers)
    try:
        model_class = getattr(transformers, name, None) if name in known else None
    except (ImportError, RuntimeError) as error:  # from a package that transformers imports, such as torchvision
        hint = "the cause may be a package that transformers uses if it is installed: fix or remove that package"
        raise from_exception(
            first_cause(error), BuildError, (*_PATH, "class"), f"transformers cannot import `{name}`", hint
        ) from error
    if model_class is None or not (is_auto(model_class) or hasattr(model_class, "_from_config")):
        names = [word for word in known if "Model" in word or "For" in word]
        raise InputError.at((*_PATH, "class"), f"transformers has no model `{name}`", nearest(name, names))
    return model_class


def _return_tensors(model: Any) -> None:
    """Makes the module return its results as a tuple, because a program cannot return the classes of transformers.

    Also turns off the cache, which would be among the results.
    """
    from etplugins.transformers import single_call  # imports transformers

    single_call.turn_cache_off(model)
    original = type(model).forward

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **keywords: Any) -> tuple[Any, ...]:
        results = original(self, *inputs, **keywords, return_dict=True)
        return tuple(single_call.row_by_row(value) for value in results.to_tuple() if value is not None)

    set_methods(model, forward=forward)
