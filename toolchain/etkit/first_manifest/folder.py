"""Writes the first manifest of a folder of Hugging Face. Only JSON files of it are read, nothing in it runs, and torch
is not imported."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.files.weights_suffixes import GGUF_SUFFIX
from etbuild.inputs.declared import is_file
from etkit.first_manifest.files import CONFIG_BYTES, Files, read_json
from etkit.first_manifest.first import PACKED, First, program_name
from etkit.first_manifest.kinds import Methods, methods_of_kind

_INDEX_BYTES = json_file.MAX_BYTES
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as `save_pretrained` writes them; with `.index.json` if split
_SHOWN = 100  # characters of a name in a file
_FILES_SHOWN = 3
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # as PEFT writes them
_GGUF_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def folder_of(place: Path) -> Path:
    """The folder that `--huggingface` names: itself, or that of a GGUF file."""
    return place.parent if place.name.endswith(GGUF_SUFFIX) and is_file(place) else place


def of_huggingface(place: Path, beside: Path, adapters: Sequence[Path] = ()) -> First:
    """What the first manifest says about a folder that `save_pretrained` wrote, or a snapshot of a hub.

    Args:
        place: The folder, or a GGUF file in it.
        beside: The directory of the manifest. If the folder is not below it, names of files are relative to the folder.
        adapters: Folders of LoRA adapters of the model.

    Raises:
        InputError: The folder has no configuration of a model, or its kind of model is not known here.
    """
    folder = folder_of(place)
    _check_is_model(folder)
    config = read_json(folder / "config.json", CONFIG_BYTES, "the configuration of a model")
    listed = config.get("architectures")
    kind = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", kind):
        hint = 'add for example `"architectures": ["LlamaForCausalLM"]`: the class of the model in transformers'
        raise InputError.of(f"{folder / 'config.json'}: `architectures` names no class", hint)
    files = Files(folder, beside)
    methods = methods_of_kind(kind, config, files)
    if methods is None:
        hint = "write the manifest by hand: its inputs are those of the class's `forward` (docs/huggingface.md)"
        raise InputError.of(f"{folder}: no first manifest is known for `{kind}`", hint)
    checkpoint = [place.name] if place != folder else _checkpoint(folder)
    packed = isinstance(config.get("quantization_config"), dict)
    quantized = [name for name in checkpoint if packed or name.endswith(GGUF_SUFFIX)]  # the export reads these
    remark = "" if checkpoint else "The folder has no weights: those of the program are random."
    if files.has(_ADAPTER_CONFIG) and folder not in adapters:
        remark = f"The folder has a LoRA adapter too, which `--adapter {folder}` adds."
    if "auto_map" in config:
        remark = "The folder has code of its own. It does not run: the class is that of transformers."
    config_file = files.named("config.json")
    found = _adapters(adapters, files)
    return First(
        name=program_name(_folder_name(folder)),
        model=[
            "huggingface:",
            f"  class: {kind}",
            f"  config: {json.dumps(config_file)}",
            *methods.model,
            *_dtype(config, place != folder or any(name.endswith(GGUF_SUFFIX) for name in checkpoint)),
            *(["adapters:"] if found else []),
            *(
                f"  {name}: {{config: {json.dumps(one)}, weights: {json.dumps(two)}}}"
                for name, (one, two) in found.items()
            ),
        ],
        methods=_with_adapters(methods, found, kind),
        hint=PACKED if packed and checkpoint else methods.hint,
        remark=remark,
        runner=methods.runner,
        data=[config_file, *methods.data, *map(files.named, quantized), *(one for one, _ in found.values())],
        checkpoint=files.named(checkpoint[0]) if checkpoint else None,
        weights=[files.named(name) for name in checkpoint if name not in quantized],
        tokenizer=methods.tokenizer,
        adapters={name: two for name, (_, two) in found.items()},
    )


def _check_is_model(folder: Path) -> None:
    """Checks that a folder is not that of a LoRA adapter, and a GGUF file not without its configuration."""
    if is_file(folder / "config.json"):
        return
    if is_file(folder / _ADAPTER_CONFIG):
        of = read_json(folder / _ADAPTER_CONFIG, CONFIG_BYTES, "the configuration of an adapter")
        base = of.get("base_model_name_or_path")
        which = f"of `{base}`" if isinstance(base, str) and len(base) < _SHOWN else "of a model"
        message = f"{folder}: this is a LoRA adapter {which}, and not a model"
        raise InputError.of(message, f"write `--huggingface` with the folder of the model, and `--adapter {folder}`")
    if any(folder.glob(f"*{GGUF_SUFFIX}")):
        hint = "put the `config.json` and the tokenizer of the same model beside it"
        raise InputError.of(f"{folder}: a GGUF file needs the configuration of its model", hint)


def _adapters(folders: Sequence[Path], files: Files) -> dict[str, tuple[str, str]]:
    """The files with the configuration and the weights of each adapter, by the adapter's name."""
    found: dict[str, tuple[str, str]] = {}
    for folder in folders:
        config = read_json(folder / _ADAPTER_CONFIG, CONFIG_BYTES, "the configuration of an adapter")
        if config.get("peft_type") != "LORA":
            raise InputError.of(f"{folder / _ADAPTER_CONFIG}: not the configuration of a LoRA adapter")
        weights = next((name for name in _ADAPTER_WEIGHTS if is_file(folder / name)), None)
        if weights is None:
            raise InputError.of(f"{folder}: there is no {_ADAPTER_WEIGHTS[0]}", "PEFT's `save_pretrained` writes it")
        roots = [root for root in (files.beside, files.folder) if folder.resolve().is_relative_to(root.resolve())]
        if not roots:
            hint = "copy it to one of them"
            raise InputError.of(f"{folder} is neither below {files.beside} nor below {files.folder}", hint)
        own = replace(files, folder=folder, beside=roots[0])
        name = program_name(folder.resolve().name)
        name = f"_{name}" if name[0].isdigit() else name
        if name in found:
            raise InputError.of(f"two adapters would be called `{name}`", "rename the folder of one")
        found[name] = own.named(_ADAPTER_CONFIG), own.named(weights)
    return found


def _with_adapters(methods: Methods, adapters: Collection[str], kind: str) -> list[str]:
    """The lines of `methods`, with a method for each adapter. A language model gets its methods without lines. Refuses
    other models with several methods: it is not known which of them an adapter changes."""
    if not adapters or any("task: text-generation" in line for line in methods.model):
        return methods.lines
    if methods.lines[:1] != ["forward:"]:
        hint = "write `adapter` in the methods that the adapter changes (docs/huggingface.md)"
        raise InputError.of(f"no first manifest with adapters is known for `{kind}`", hint)
    own = [[f"forward_{name}:", "  entry: forward", f"  adapter: {name}", *methods.lines[1:]] for name in adapters]
    return [*methods.lines, *itertools.chain(*own)]


def _dtype(config: dict[str, Any], quantized: bool) -> list[str]:
    """The line of `model` that converts a checkpoint in 16 bits, in a list. Quantized files are read in float32."""
    dtype = config.get("dtype", config.get("torch_dtype"))
    why = "GGUF files are read in it" if quantized else f"the checkpoint has {dtype}"
    return [f"dtype: float32   # {why}"] if dtype in ("bfloat16", "float16") else []


def _checkpoint(folder: Path) -> list[str]:
    """The file that `model.weights` names, and the shards that it lists. Empty if there are no weights."""
    for name in _WEIGHTS:
        if is_file(folder / name):
            return [name]
        index = folder / f"{name}.index.json"
        if is_file(index):
            shards = read_json(index, _INDEX_BYTES, "an index of weights").get("weight_map")
            if not isinstance(shards, dict) or not shards or not all(isinstance(each, str) for each in shards.values()):
                raise InputError.of(f"{index}: not an index of weights: `weight_map` does not name files")
            return [index.name, *sorted(set(shards.values()))]
    quantized = sorted(path.name for path in folder.glob(f"*{GGUF_SUFFIX}") if is_file(path))
    if len(quantized) > 1:
        parts = [name for name in quantized if _GGUF_PART.search(name)]
        hint = "merge its parts with llama.cpp's `llama-gguf-split --merge`" if parts else "name one: "
        hint += "" if parts else f"`--huggingface {folder / quantized[0]}`"
        raise InputError.of(f"{folder} has several GGUF files: {', '.join(quantized[:_FILES_SHOWN])}", hint)
    return quantized


def _folder_name(folder: Path) -> str:
    """The name of a folder; in a hub's cache, that of the model."""
    path = folder.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.rpartition("--")[2]
    return path.name
