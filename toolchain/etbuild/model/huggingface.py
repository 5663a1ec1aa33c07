"""Makes a module from a Hugging Face configuration and a class of `transformers`.

It downloads nothing. The module's inputs and results are tensors, so that only the export needs `transformers`.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.files import json_file, regular_files
from etbuild.inputs.declared import Inputs
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import wrap_user_error
from etbuild.model import decoder_cache
from etbuild.plan.parts import HuggingFace
from etbuild.processes.random_seeds import seed

_PATH: DocumentPath = ("model", "huggingface")
_NO_NETWORK = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}  # transformers writes these names
_OF_FILES = ("auto_map", "architectures", "transformers_version")  # keys that only `from_pretrained` reads


def create(wanted: HuggingFace, first_seed: int, context: StepContext) -> torch.nn.Module:
    """Makes the module with random weights. Parameters have the names that `save_pretrained` writes.

    Args:
        wanted: The class and the configuration.
        first_seed: The seed for the random weights.
        context: The declared inputs of the step, which may contain the configuration.

    Raises:
        InputError: The class or a key of the configuration is unknown, or the configuration's file cannot be read.
        BuildError: `transformers` is missing, or refuses the configuration.
    """
    transformers = _import()
    cls = _class(transformers, wanted.model_class)
    seed(first_seed)
    with wrap_user_error((*_PATH, "config"), f"making a `{wanted.model_class}` of the configuration", context.finder):
        config = _config(transformers, cls, wanted.config, context.inputs)
        model = _model(cls, config, wanted.attention)
        if wanted.cache is None:
            _return_tensors(model)
        else:
            _set_forward(model, decoder_cache.add(model, wanted, wanted.cache))
    return model


def _model(cls: Any, config: Any, attention: str | None) -> Any:
    """Makes the model with random weights.

    Args:
        cls: Its class.
        config: Its configuration.
        attention: Its attention in the manifest; None for the one that transformers chooses.

    Raises:
        BuildError: The model cannot have ExecuTorch's attention.
    """
    make = functools.partial(cls.from_config, trust_remote_code=False) if _is_auto(cls) else cls._from_config
    if attention != "custom_sdpa":
        return make(config) if attention is None else make(config, attn_implementation=attention)
    from etbuild.model import custom_attention

    custom_attention.register()
    try:
        return make(config, attn_implementation=custom_attention.NAME)
    except (KeyError, ValueError) as error:  # classes with an attention that no other one computes
        raise custom_attention.unsupported("transformers allows it no other attention") from error


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
    if found is None or not (_is_auto(found) or hasattr(found, "_from_config")):
        raise InputError.at((*_PATH, "class"), f"transformers has no model `{name}`", _nearest(name, known))
    return found


def _nearest(word: str, known: list[str]) -> str | None:
    """Like `did_you_mean`, but without the list of known names, which has two thousand entries."""
    hint = did_you_mean(word, known) or ""
    return hint.partition(" (known: ")[0] if hint.startswith("did") else "a class such as LlamaForCausalLM or BertModel"


def _is_auto(cls: Any) -> bool:
    return hasattr(cls, "from_config") and not hasattr(cls, "_from_config")


def _config(transformers: ModuleType, cls: Any, wanted: str | dict[str, Any], inputs: Inputs) -> Any:
    """Makes the configuration.

    Raises:
        InputError: The file cannot be read, `model_type` is wrong, or the manifest has a key that the class of the
            configuration does not know.
    """
    path: DocumentPath = (*_PATH, "config")
    values = dict(_read(wanted, inputs) if isinstance(wanted, str) else wanted)
    config_class = _config_class(transformers, cls, values, path)
    config = config_class(**values)
    if not isinstance(wanted, str):  # files may have keys of other versions, which `from_pretrained` ignores
        _check_keys(config, wanted, path)
    return config


def _check_keys(config: Any, wanted: dict[str, Any], path: DocumentPath) -> None:
    """Fails if transformers does not know a key: it would become an attribute of the configuration that nothing reads.

    Args:
        config: The configuration.
        wanted: The keys and values in the manifest.
        path: The document path of the configuration.
    """
    cls = type(config)
    known = cls().to_dict()
    problems = [
        Problem(f"`{cls.__name__}` has no `{key}`", (*path, key), did_you_mean(key, known), at_key=True)
        for key in wanted
        if key in config.to_dict() and key not in known
    ]
    if problems:
        raise InputError(problems)


def _read(name: str, inputs: Inputs) -> dict[str, Any]:
    path: DocumentPath = (*_PATH, "config")
    try:
        content = json_file.parse(regular_files.read(inputs.find_data(name, path), json_file.MAX_BYTES), _NOT_FINITE)
    except (OSError, ValueError) as error:
        raise InputError.at(path, f"cannot read `{name}`: {error}") from None
    if not isinstance(content, dict):
        raise InputError.at(path, f"`{name}` is not a configuration: it is not a JSON object")
    return {key: value for key, value in content.items() if key not in _OF_FILES}


def _config_class(transformers: ModuleType, cls: Any, values: dict[str, Any], path: DocumentPath) -> Any:
    """The class of configurations for a class of models. Removes `model_type` from the values.

    Raises:
        InputError: `model_type` is unknown, missing, or not that of the class of models.
    """
    model_type = values.pop("model_type", None)
    if not _is_auto(cls):
        own = cls.config_class.model_type
        if model_type not in (None, own):
            message = f"`{cls.__name__}` takes configurations of the `model_type` {own}, not {model_type}"
            raise InputError.at(path, message, "remove `model_type`, or choose another class")
        return cls.config_class
    known = list(transformers.CONFIG_MAPPING.keys())
    if model_type not in known:
        message = f"`{cls.__name__}` needs a `model_type` of transformers; the configuration has {model_type or 'none'}"
        raise InputError.at(path, message, _nearest(str(model_type), known) if model_type else "such as llama")
    return transformers.CONFIG_MAPPING[model_type]


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
