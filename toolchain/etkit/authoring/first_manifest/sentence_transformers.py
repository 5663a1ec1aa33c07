"""Reads what sentence-transformers writes beside a model: how it pools the features of tokens, and its longest text.

Only JSON files are read. A module that `task: feature-extraction` does not have is an error, and so is another order:
the program would compute other features.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files
from etbuild.inputs.given import is_file
from etkit.authoring.first_manifest.files import CONFIG_BYTES, positive, read_json

_MODULES = "modules.json"
_POOLING = {
    "cls": "cls",
    "lasttoken": "last",
    "mean": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
"""The `pooling` of a manifest for each value of `pooling_mode`, and for each key that older files set to true."""
_KINDS = ("Pooling", "Dense", "Normalize")
"""The modules that the task has, in the order in which it computes them."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_OF_DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual")
_NAMES = ("module_input_name", "module_output_name")
_ACTIVATION = re.compile(r"torch\.nn\.(modules\.\w+\.)?([A-Za-z]\w*)", re.ASCII)
_FACTORY = "write a factory for this model: see the page `Methods and inputs`"


@dataclass(frozen=True)
class Dense:
    """A linear layer after the pooling.

    Attributes:
        entry: Its entry under `dense` of the manifest.
        weights: The file with its weights.
    """

    entry: dict[str, Any]
    weights: str


@dataclass(frozen=True)
class Embedder:
    """How a model makes the features of a text.

    Attributes:
        pooling: The `pooling` of the manifest.
        dense: The layers after the pooling.
        normalize: Whether the features have the length 1.
        longest: The largest number of tokens; None if no file says it.
        remark: The work of the application on a text; empty for none.
    """

    pooling: str
    dense: list[Dense]
    normalize: bool
    longest: int | None
    remark: str


def read(folder: Path) -> Embedder | None:
    """Reads the folder of a model. None if it is not one of sentence-transformers.

    Raises:
        InputError: A file is wrong, or the model has a module that the task does not have.
    """
    if not is_file(folder / _MODULES):
        return None
    kinds = [(_kind(folder, entry), entry) for entry in _list(folder / _MODULES)]
    (first, root), *others = kinds or [("", {})]
    if first != "Transformer" or root.get("path") not in ("", None):
        message = f"{folder / _MODULES}: the first module is not the `Transformer` of this folder"
        raise InputError.of(message, "write the manifest by hand: see the page `Embeddings, labels and boxes`")
    for kind, _ in others:
        if kind not in _KINDS:
            raise InputError.of(f"{folder}: `task: feature-extraction` has no module `{kind[:100]}`", _FACTORY)
    _check_order(folder, [kind for kind, _ in others])
    poolings = [_pooling(folder, _path(folder, entry)) for kind, entry in others if kind == "Pooling"]
    settings = _object(folder / "sentence_bert_config.json")
    return Embedder(
        pooling=poolings[0] if poolings else "none",
        dense=[_dense(folder, _path(folder, entry)) for kind, entry in others if kind == "Dense"],
        normalize=any(kind == "Normalize" for kind, _ in others),
        longest=positive(settings.get("max_seq_length")) or _length_of_tokenizer(folder),
        remark=_remark(settings, _object(folder / "config_sentence_transformers.json")),
    )


def _check_order(folder: Path, kinds: list[str]) -> None:
    """Checks that the modules after the transformer are those of the task, in its order: one `Pooling`, any number of
    `Dense`, and a `Normalize`. There may be no module: then features stay those of tokens."""
    ordered = sorted(kinds, key=_KINDS.index)
    if kinds != ordered or kinds.count("Pooling") > 1 or (kinds and kinds[0] != "Pooling"):
        found = ", ".join(f"`{kind}`" for kind in kinds)
        message = f"{folder}: `task: feature-extraction` does not compute {found} in this order"
        raise InputError.of(message, _FACTORY)


def _path(folder: Path, entry: dict[str, Any]) -> str:
    """The folder of a module."""
    path = _text(folder, entry, "path")
    if not re.fullmatch(r"\w[\w.-]*", path):
        raise InputError.of(f"{folder / _MODULES}: the path of a module is not the name of a folder")
    return path


def _dense(folder: Path, path: str) -> Dense:
    """The layer in a folder of the model. Missing values are the defaults of sentence-transformers."""
    place = folder / path / "config.json"
    config = {"bias": True, "activation_function": "torch.nn.Tanh", "use_residual": False, **_object(place)}
    sizes = [positive(config.get(key)) for key in _OF_DENSE[:2]]
    found = _ACTIVATION.fullmatch(str(config["activation_function"]))
    names = [config[key] for key in _NAMES if config.get(key) not in (None, "sentence_embedding")]
    others = config.keys() - {*_OF_DENSE, *_NAMES}
    wrong = [
        *(f"`{key}`" for key, size in zip(_OF_DENSE, sizes, strict=False) if size is None),
        *(f"`{key}`" for key in ("bias", "use_residual") if type(config[key]) is not bool),
        *([] if found else [f"the activation `{str(config['activation_function'])[:100]}`"]),
        *(f"the features `{str(name)[:100]}`" for name in names),
        *(f"`{key[:100]}`" for key in sorted(others)),
    ]
    if wrong or found is None:
        message = f"{place}: `task: feature-extraction` has no `Dense` with {' and '.join(wrong)}"
        raise InputError.of(message, _FACTORY)
    weights = next((name for name in _WEIGHTS if is_file(folder / path / name)), None)
    if weights is None:
        raise InputError.of(f"{folder / path}: there is no {_WEIGHTS[0]}", "download the folder again")
    entry = {
        "in_features": sizes[0],
        "out_features": sizes[1],
        "bias": config["bias"],
        "activation": found[2],
        **({"residual": True} if config["use_residual"] else {}),
    }
    return Dense(entry, f"{path}/{weights}")


def _pooling(folder: Path, path: str) -> str:
    """The `pooling` of the manifest for the module in a folder of the model."""
    place = folder / path / "config.json"
    config = _object(place)
    mode = config.get("pooling_mode")
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    modes = [mode] if isinstance(mode, str) else modes
    if len(modes) != 1 or modes[0] not in _POOLING:
        found = " and ".join(f"`{each[:100]}`" for each in modes) or "nothing"
        raise InputError.of(f"{place}: `task: feature-extraction` does not pool with {found}", _FACTORY)
    if config.get("include_prompt") is False:
        raise InputError.of(f"{place}: `include_prompt` leaves a part of the text out of the pooling", _FACTORY)
    return _POOLING[modes[0]]


def _kind(folder: Path, entry: dict[str, Any]) -> str:
    """The kind of a module: the name of its class in sentence-transformers, or the full name of another class."""
    name = _text(folder, entry, "type")
    return name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name


def _remark(settings: dict[str, Any], prompts: dict[str, Any]) -> str:
    """The work of the application on a text before it makes tokens."""
    named = prompts.get("prompts")
    done = []
    if isinstance(named, dict) and any(named.values()):
        done.append("puts a prompt of config_sentence_transformers.json before a text")
    if settings.get("do_lower_case") is True:
        done.append("makes a text lower case")
    return f"sentence-transformers {' and '.join(done)}: the application has to." if done else ""


def _length_of_tokenizer(folder: Path) -> int | None:
    """The largest number of tokens that the tokenizer makes. Without a limit, transformers writes 1e30, which is no
    number for `json_file`."""
    with suppress(InputError):
        return positive(_object(folder / "tokenizer_config.json").get("model_max_length"))
    return None


def _text(folder: Path, entry: dict[str, Any], key: str) -> str:
    if not isinstance(entry.get(key), str):
        raise InputError.of(f"{folder / _MODULES}: a module has no `{key}`")
    return str(entry[key])


def _list(path: Path) -> list[dict[str, Any]]:
    try:
        content = json_file.parse(regular_files.read(path, CONFIG_BYTES))
    except OSError as error:
        raise InputError.of(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError.of(f"{path}: not a list of modules: {error}") from None
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise InputError.of(f"{path}: not a list of modules")
    return content


def _object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none."""
    return read_json(path, CONFIG_BYTES, "a JSON file of sentence-transformers") if is_file(path) else {}
