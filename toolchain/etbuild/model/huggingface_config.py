"""Makes the configuration of a Hugging Face model: from keys, from a file, or from a file with other values."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs.checkpoints import read_json
from etbuild.inputs.given import Given
from etbuild.manifest.sections import Options
from etbuild.plan.parts import ConfigFile

PATH: DocumentPath = ("model", "huggingface")
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""What older releases of transformers write into a file. Newer ones write `{"__float__": "Infinity"}`."""
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
_OF_FILES = ("architectures", "transformers_version")  # keys that only `from_pretrained` reads
_NAMES_CODE = re.compile(r"auto_map|\w*_implementation(_internal)?")
"""Keys whose value may name a repository with code, which transformers then imports; in nested configurations too."""
_LAYERS = re.compile(r"n_layer|(\w+_)?layers")


def nearest(word: str, known: list[str]) -> str | None:
    """Like `did_you_mean`, but without the list of known names, which has two thousand entries."""
    hint = did_you_mean(word, known) or ""
    return hint.partition(" (known: ")[0] if hint.startswith("did") else "a class such as LlamaForCausalLM or BertModel"


def is_auto(cls: Any) -> bool:
    """Whether a class is an Auto class, which selects the model by the configuration's `model_type`."""
    return hasattr(cls, "from_config") and not hasattr(cls, "_from_config")


def make_config(transformers: ModuleType, cls: Any, wanted: ConfigFile | Options, inputs: Given) -> Any:
    """Makes the configuration.

    Args:
        transformers: The package.
        cls: The class of the model.
        wanted: The keys, or the file with keys to change.
        inputs: The declared inputs, which may contain the file.

    Raises:
        InputError: The file cannot be read, `model_type` is wrong, the number of layers is negative, or the manifest
            has a key that may name code, or that the class of the configuration does not know.
    """
    path: DocumentPath = (*PATH, "config")
    if not isinstance(wanted, ConfigFile):
        given = dict(wanted)
        _check_values(given, path)
        config = _config_class(transformers, cls, given, path)(**given)
        _check_keys(config, wanted, path)
        return config
    values = _read(wanted.file, inputs)  # files may have keys of other versions, which `from_pretrained` ignores
    changed = dict(wanted.set)
    values |= {"model_type": changed.pop("model_type")} if "model_type" in changed else {}
    config_class = _config_class(transformers, cls, values, path)
    problems = [each for key in changed for each in _set(values, key, changed[key], config_class, (*path, "set"))]
    if problems:
        raise InputError(problems)
    _check_values(values, path)
    return config_class(**values)


def _check_values(values: Mapping[str, Any], path: DocumentPath) -> None:
    """Fails for a key that may name code, which only the manifest can have, and for a negative number of layers: a loop
    makes none of them."""
    problems = []
    for at, value in _entries(values, path):
        if _NAMES_CODE.fullmatch(str(at[-1])):
            hint = "`attention`, a key next to `config`, chooses the attention; leave the others out"
            problems.append(Problem(f"`{at[-1]}` may name code of others, which a build does not run", at, hint))
        elif isinstance(value, int) and value < 0 and _LAYERS.fullmatch(str(at[-1])):
            problems.append(Problem(f"`{at[-1]}` is {value}, which is not a number of layers", at))
    if problems:
        raise InputError(problems)


def _entries(values: Mapping[str, Any], above: DocumentPath) -> Iterator[tuple[DocumentPath, Any]]:
    """The path and the value of each entry, also of those of nested configurations."""
    for key, value in values.items():
        yield (*above, key), value
        if isinstance(value, Mapping):
            yield from _entries(value, (*above, key))


def _check_keys(config: Any, wanted: Mapping[str, Any], path: DocumentPath) -> None:
    """Fails if transformers does not know a key: it would become an attribute of the configuration that nothing
    reads."""
    cls = type(config)
    known = cls().to_dict()
    problems = [
        Problem(f"`{cls.__name__}` has no `{key}`", (*path, key), did_you_mean(key, known), at_key=True)
        for key in wanted
        if key in config.to_dict() and key not in known and not _is_read(cls, key)
    ]
    if problems:
        raise InputError(problems)


def _is_read(config_class: Any, key: str) -> bool:
    """Whether transformers' code for a model reads a key that has no default, such as DeBERTa's `position_buckets`. The
    ids of tokens are read for every model that writes text."""
    if key in _TOKENS:
        return True
    folder = Path(inspect.getfile(config_class)).parent
    read = re.compile(rf"""config\.{re.escape(key)}\b|["']{re.escape(key)}["']""")
    return any(read.search(file.read_text("utf-8")) for file in sorted(folder.glob("*_*.py")))


def _set(values: Options, key: str, value: Any, config_class: Any, path: DocumentPath) -> Iterator[Problem]:
    """Replaces a value of a configuration, in place. A dot in the key leads into a nested configuration. Yields a
    problem if neither the file nor the class has the key."""
    *above, last = key.split(".")
    level, defaults = values, config_class().to_dict()
    for index, part in enumerate(above):
        if not isinstance(level.get(part, defaults.get(part)), dict):
            known = [name for name in {**defaults, **level} if isinstance(level.get(name, defaults.get(name)), dict)]
            message = f"the configuration has no nested configuration `{'.'.join(above[: index + 1])}`"
            yield Problem(message, (*path, key), did_you_mean(part, known), at_key=True)
            return
        level = level.setdefault(part, {})
        defaults = defaults.get(part) or {}
    if not above:  # GPT-2, for example, calls `hidden_size` `n_embd`
        last = config_class.attribute_map.get(last, last)
    has_key = last in level or last in defaults or (not above and _is_read(config_class, last))
    if not has_key:
        hint = did_you_mean(last, {**defaults, **level})
        yield Problem(f"the configuration has no `{key}`", (*path, key), hint, at_key=True)
    level[last] = copy.deepcopy(value)  # a later key may change a part of it


def _read(name: str, inputs: Given) -> Options:
    path: DocumentPath = (*PATH, "config")
    content = _cleaned(read_json(name, path, inputs, _NOT_FINITE))
    if not isinstance(content, dict):
        raise InputError.at(path, f"`{name}` is not a configuration: it is not a JSON object")
    return {key: value for key, value in content.items() if key not in _OF_FILES}


def _cleaned(value: Any) -> Any:
    """A value of a file without keys that may name code, and with the numbers that JSON has no form for."""
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if not isinstance(value, dict):
        return value
    number = _NOT_FINITE.get(str(value.get("__float__"))) if len(value) == 1 else None
    if number is not None:
        return number
    return {key: _cleaned(each) for key, each in value.items() if not _NAMES_CODE.fullmatch(key)}


def _config_class(transformers: ModuleType, cls: Any, values: Options, path: DocumentPath) -> Any:
    """The class of configurations for a class of models. Removes `model_type` from the values; it must be that of the
    class of models."""
    model_type = values.pop("model_type", None)
    if not is_auto(cls):
        own = cls.config_class.model_type
        if model_type not in (None, own):
            message = f"`{cls.__name__}` takes configurations of the `model_type` {own}, not {model_type}"
            raise InputError.at(path, message, "remove `model_type`, or choose another class")
        return cls.config_class
    known = list(transformers.CONFIG_MAPPING.keys())
    if model_type not in known:
        message = f"`{cls.__name__}` needs a `model_type` of transformers; the configuration has {model_type or 'none'}"
        raise InputError.at(path, message, nearest(str(model_type), known) if model_type else "such as llama")
    return transformers.CONFIG_MAPPING[model_type]
