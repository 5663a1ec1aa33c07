"""Makes the configuration of a Hugging Face model from keys, from a file, or from a file with changed keys."""

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
from etplugins.transformers.parts import ConfigFile

PATH: DocumentPath = ("model", "huggingface")
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""How older releases of transformers write such numbers to files. Newer ones write `{"__float__": "Infinity"}`."""
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
_FILE_KEYS = ("architectures", "transformers_version")  # keys that only `from_pretrained` reads
_NAMES_CODE = re.compile(r"auto_map|\w*_implementation(_internal)?")
"""Keys whose value may name a repository with code that transformers imports, also in nested configurations."""
_LAYERS = re.compile(r"n_layer|(\w+_)?layers")


def nearest(word: str, names: list[str]) -> str | None:
    """Like `did_you_mean`, but without the list of known names: transformers has two thousand."""
    hint = did_you_mean(word, names) or ""
    return hint.partition(" (known: ")[0] if hint.startswith("did") else "a class such as LlamaForCausalLM or BertModel"


def is_auto(cls: Any) -> bool:
    """Whether a class is an Auto class, which selects the model by the configuration's `model_type`."""
    return hasattr(cls, "from_config") and not hasattr(cls, "_from_config")


def make_config(transformers: ModuleType, cls: Any, source: ConfigFile | Options, inputs: Given) -> Any:
    """Makes the configuration.

    Args:
        transformers: The package.
        cls: The class of the model.
        source: The keys, or the file with keys to change.
        inputs: The declared inputs, which may contain the file.

    Raises:
        InputError: The file cannot be read, `model_type` is wrong, the number of layers is negative, or the manifest
            has a key that may name code, or that the class of the configuration does not know.
    """
    path: DocumentPath = (*PATH, "config")
    if not isinstance(source, ConfigFile):
        values_of_manifest = dict(source)
        _check_values(values_of_manifest, path)
        config = _config_class(transformers, cls, values_of_manifest, path)(**values_of_manifest)
        _check_keys(config, source, path)
        return config
    values = _read(source.file, inputs)  # unknown keys in files are ignored, as by `from_pretrained`
    changes = dict(source.set)
    values |= {"model_type": changes.pop("model_type")} if "model_type" in changes else {}
    config_class = _config_class(transformers, cls, values, path)
    problems = [problem for key in changes for problem in _set(values, key, changes[key], config_class, (*path, "set"))]
    InputError.raise_if(problems)
    _check_values(values, path)
    return config_class(**values)


def _check_values(values: Mapping[str, Any], path: DocumentPath) -> None:
    """Fails for a key that may name code, and for a negative number of layers, with which transformers would make a
    model without layers. Keys that may name code can only come from the manifest."""
    problems = []
    for key_path, value in _entries(values, path):
        if _NAMES_CODE.fullmatch(str(key_path[-1])):
            hint = "`attention`, a key next to `config`, chooses the attention; leave the others out"
            problems.append(
                Problem(f"`{key_path[-1]}` may name code of others, which a build does not run", key_path, hint)
            )
        elif isinstance(value, int) and value < 0 and _LAYERS.fullmatch(str(key_path[-1])):
            problems.append(Problem(f"`{key_path[-1]}` is {value}, which is not a number of layers", key_path))
    InputError.raise_if(problems)


def _entries(values: Mapping[str, Any], above: DocumentPath) -> Iterator[tuple[DocumentPath, Any]]:
    """The path and the value of each entry, also in nested configurations."""
    for key, value in values.items():
        yield (*above, key), value
        if isinstance(value, Mapping):
            yield from _entries(value, (*above, key))


def _check_keys(config: Any, keys: Mapping[str, Any], path: DocumentPath) -> None:
    """Fails if transformers does not know a key: it would become an attribute that nothing reads."""
    cls = type(config)
    defaults = cls().to_dict()
    problems = [
        Problem(f"`{cls.__name__}` has no `{key}`", (*path, key), did_you_mean(key, defaults), at_key=True)
        for key in keys
        if key in config.to_dict() and key not in defaults and not _is_read(cls, key)
    ]
    InputError.raise_if(problems)


def _is_read(config_class: Any, key: str) -> bool:
    """Whether transformers' code for a model reads a key that has no default, such as DeBERTa's `position_buckets`.
    Token ids count as read: transformers reads them for every model that generates text."""
    if key in _TOKENS:
        return True
    directory = Path(inspect.getfile(config_class)).parent
    reading = re.compile(rf"""config\.{re.escape(key)}\b|["']{re.escape(key)}["']""")
    return any(reading.search(file.read_text("utf-8")) for file in sorted(directory.glob("*_*.py")))


def _set(values: Options, key: str, value: Any, config_class: Any, path: DocumentPath) -> Iterator[Problem]:
    """Sets a key of a configuration, in place. A dot in the key leads into a nested configuration. Yields a problem if
    neither the file nor the class has the key."""
    *above, last = key.split(".")
    level, defaults = values, config_class().to_dict()
    for index, part in enumerate(above):
        if not isinstance(level.get(part, defaults.get(part)), dict):
            nested = [name for name in {**defaults, **level} if isinstance(level.get(name, defaults.get(name)), dict)]
            message = f"the configuration has no nested configuration `{'.'.join(above[: index + 1])}`"
            yield Problem(message, (*path, key), did_you_mean(part, nested), at_key=True)
            return
        level = level.setdefault(part, {})
        defaults = defaults.get(part) or {}
    if not above:  # GPT-2, for example, calls `hidden_size` `n_embd`
        last = config_class.attribute_map.get(last, last)
    has_key = last in level or last in defaults or (not above and _is_read(config_class, last))
    if not has_key:
        hint = did_you_mean(last, {**defaults, **level})
        yield Problem(f"the configuration has no `{key}`", (*path, key), hint, at_key=True)
    level[last] = copy.deepcopy(value)  # a later key may change a part of the value


def _read(name: str, inputs: Given) -> Options:
    path: DocumentPath = (*PATH, "config")
    content = _cleaned(read_json(name, path, inputs, _NOT_FINITE))
    if not isinstance(content, dict):
        raise InputError.at(path, f"`{name}` is not a configuration: it is not a JSON object")
    return {key: value for key, value in content.items() if key not in _FILE_KEYS}


def _cleaned(value: Any) -> Any:
    """A value of a file without keys that may name code. Texts for infinite numbers and NaN become numbers."""
    if isinstance(value, list):
        return [_cleaned(part) for part in value]
    if not isinstance(value, dict):
        return value
    number = _NOT_FINITE.get(str(value.get("__float__"))) if len(value) == 1 else None
    if number is not None:
        return number
    return {key: _cleaned(part) for key, part in value.items() if not _NAMES_CODE.fullmatch(key)}


def _config_class(transformers: ModuleType, cls: Any, values: Options, path: DocumentPath) -> Any:
    """The class of configurations for a class of models. Removes `model_type` from `values`, and raises InputError if
    it does not fit the class."""
    model_type = values.pop("model_type", None)
    if not is_auto(cls):
        expected = cls.config_class.model_type
        if model_type not in (None, expected):
            message = f"`{cls.__name__}` takes configurations of the `model_type` {expected}, not {model_type}"
            raise InputError.at(path, message, "remove `model_type`, or choose another class")
        return cls.config_class
    model_types = list(transformers.CONFIG_MAPPING.keys())
    if model_type not in model_types:
        message = f"`{cls.__name__}` needs a `model_type` of transformers; the configuration has {model_type or 'none'}"
        raise InputError.at(path, message, nearest(str(model_type), model_types) if model_type else "such as llama")
    return transformers.CONFIG_MAPPING[model_type]
