"""Writes the first manifest of a folder of Hugging Face. Only JSON files of it are read, nothing in it runs, and torch
is not imported."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.files.weights_suffixes import GGUF_SUFFIX
from etbuild.inputs.given import is_file
from etkit.authoring.first_manifest import other_methods
from etkit.authoring.first_manifest.files import CONFIG_BYTES, Files, read_json
from etkit.authoring.first_manifest.first import PACKED, First, program_name
from etkit.authoring.first_manifest.kinds import Methods, methods_of_kind, why_unknown
from etplugins.packed import formats
from etplugins.transformers.class_inputs import ClassInputs
from etplugins.transformers.tasks import TASKS

_INDEX_BYTES = json_file.MAX_BYTES
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # of `save_pretrained`; split ones have an index, `.index.json`
_INDEX = ".index.json"
_SHOWN = 100  # characters of a name that a message shows
_FILES_SHOWN = 3
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # as PEFT writes them
_GGUF_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def folder_of(place: Path) -> Path:
    """The folder that `--huggingface` names: itself, or that of a GGUF file."""
    return place.parent if place.name.endswith(GGUF_SUFFIX) and is_file(place) else place


def of_huggingface(
    place: Path,
    beside: Path,
    adapters: Sequence[Path] = (),
    inputs_of: Callable[[str], ClassInputs | None] = lambda kind: None,
) -> Iterator[First]:
    """Yields first manifests of a folder that `save_pretrained` wrote, or of a snapshot of a hub: the best one first.

    Args:
        place: The folder, or a GGUF file in it.
        beside: The directory of the manifest. If the folder is not below it, names of files are relative to the folder.
        adapters: Folders of LoRA adapters of the model.
        inputs_of: Returns the inputs of a class; None if they are not known.

    Raises:
        InputError: The folder has no configuration of a model, its kind of model is not known here, or the build could
            not read its weights.
    """
    folder = folder_of(place)
    _check_is_model(folder)
    config = read_json(folder / "config.json", CONFIG_BYTES, "the configuration of a model")
    kind, files = _class(config, folder), Files(folder, beside, (folder,))
    known = False
    for methods in _candidates(kind, config, files, inputs_of):
        try:
            first = _first(place, adapters, config, kind, files, methods)
        except InputError:
            if known:
                continue  # such as methods that cannot have adapters
            raise
        known = True
        yield first
    if not known:
        hint = "write the manifest by hand: its inputs are those of the class's `forward`. See the page `Hugging Face`"
        inputs, of_texts = inputs_of(kind), why_unknown(config)
        hint = other_methods.STEPS_OF_LOOP if inputs is not None and inputs.loops else hint
        own = "" if inputs is None else other_methods.why_unknown(kind, config, inputs)
        why = of_texts or own if inputs is None or inputs.generates else own or of_texts
        raise InputError.of(f"{folder}: no first manifest is known for `{kind}`{why}", hint)


def _candidates(
    kind: str, config: dict[str, Any], files: Files, inputs_of: Callable[[str], ClassInputs | None]
) -> Iterator[Methods]:
    """The methods of a kind of models, with more inputs if its class has them, then others that its class may have."""
    first, inputs = methods_of_kind(kind, config, files), inputs_of(kind)
    if first is not None:
        yield from () if inputs is None else other_methods.with_all_inputs(first, kind, config, inputs)
        yield first
    if inputs is not None:
        yield from (each for each in other_methods.of(kind, config, files, inputs) if each != first)


def _first(
    place: Path, adapters: Sequence[Path], config: dict[str, Any], kind: str, files: Files, methods: Methods
) -> First:
    folder, beside = files.folder, files.beside
    checkpoint = [place.name] if place != folder else _checkpoint(files)
    packed = bool(checkpoint) and _is_packed(config, folder)
    quantized = [name for name in checkpoint if packed or name.endswith(GGUF_SUFFIX)]  # files that the export reads
    found = _adapters(adapters, files)
    config_file = files.named("config.json")
    of_adapters = {name: (own.named(_ADAPTER_CONFIG), own.named(weights)) for name, (own, weights) in found.items()}
    return First(
        name=program_name(_folder_name(folder)),
        model=[
            "huggingface:",
            f"  class: {methods.model_class or kind}",
            f"  config: {json.dumps(config_file)}",
            *methods.model,
            *_dtype(config, any(name.endswith(GGUF_SUFFIX) for name in checkpoint)),
            *(["adapters:"] if of_adapters else []),
            *(
                f"  {name}: {{config: {json.dumps(one)}, weights: {json.dumps(two)}}}"
                for name, (one, two) in of_adapters.items()
            ),
        ],
        methods=_with_adapters(methods, found, kind),
        hint=PACKED if packed else methods.hint,
        remarks=[*_remarks(config, files, checkpoint, adapters), *methods.remarks],
        runner=methods.runner,
        data=[config_file, *methods.data, *map(files.named, quantized), *(one for one, _ in of_adapters.values())],
        checkpoint=files.named(checkpoint[0]) if checkpoint else None,
        weights_of_children=methods.weights_of_children,
        weights=[
            *(files.named(name) for name in checkpoint if name not in quantized),
            *(methods.weights_of_children if checkpoint else ()),
        ],
        tokenizer=methods.tokenizer,
        chats=methods.chats,
        adapters={name: two for name, (_, two) in of_adapters.items()},
        config=config,
        roots=list(
            dict.fromkeys(each.root for each in (files, *(own for own, _ in found.values())) if each.root != beside)
        ),
    )


def _class(config: dict[str, Any], folder: Path) -> str:
    """The class of transformers that a configuration names."""
    listed = config.get("architectures")
    kind = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", kind):
        hint = 'add for example `"architectures": ["LlamaForCausalLM"]`: the class of the model in transformers'
        raise InputError.of(f"{folder / 'config.json'}: `architectures` names no class", hint)
    return kind


def _remarks(
    config: dict[str, Any], files: Files, checkpoint: Collection[str], adapters: Collection[Path]
) -> Iterator[str]:
    """Remarks about a folder for the user."""
    if not checkpoint:
        yield "The folder has no weights: those of the program are random."
    if files.has(_ADAPTER_CONFIG) and files.folder not in adapters:
        yield f"The folder has a LoRA adapter too, which `--adapter {files.folder}` adds."
    if "auto_map" in config:
        yield "The folder has code of its own. It does not run: the class is that of transformers."


def _is_packed(config: dict[str, Any], folder: Path) -> bool:
    """Whether the weights are packed. Refuses a form that the build does not read."""
    packing = config.get("quantization_config")
    if not isinstance(packing, dict):
        return False
    method, other = formats.method_of(packing), formats.other_form(packing)
    if method not in formats.READ or other:
        form = f" with {other}" if other else ""
        raise InputError.of(f"{folder}: the checkpoint is packed by {method[:_SHOWN]}{form}", formats.HINT)
    return True


def _check_is_model(folder: Path) -> None:
    """Refuses the folder of a LoRA adapter, and a GGUF file without the configuration of its model."""
    if is_file(folder / "config.json"):
        return
    if is_file(folder / _ADAPTER_CONFIG):
        of = read_json(folder / _ADAPTER_CONFIG, CONFIG_BYTES, "the configuration of an adapter")
        base = of.get("base_model_name_or_path")
        which = f"of `{base}`" if isinstance(base, str) and len(base) < _SHOWN else "of a model"
        message = f"{folder}: this is a LoRA adapter {which}, and not a model"
        raise InputError.of(message, f"write `--huggingface` with the folder of the model, and `--adapter {folder}`")
    if any(folder.glob(f"*{GGUF_SUFFIX}")):
        hint = "put the `config.json` and the tokenizer of the same model into its directory"
        raise InputError.of(f"{folder}: a GGUF file needs the configuration of its model", hint)


def _adapters(folders: Sequence[Path], files: Files) -> dict[str, tuple[Files, str]]:
    """The files of each adapter and its file with weights, by the adapter's name. Names of files outside the manifest's
    directory are relative to the directory above the adapter, so that adapters have different names."""
    found: dict[str, tuple[Files, str]] = {}
    for folder in folders:
        config = read_json(folder / _ADAPTER_CONFIG, CONFIG_BYTES, "the configuration of an adapter")
        if config.get("peft_type") != "LORA":
            raise InputError.of(f"{folder / _ADAPTER_CONFIG}: not the configuration of a LoRA adapter")
        weights = next((name for name in _ADAPTER_WEIGHTS if is_file(folder / name)), None)
        if weights is None:
            raise InputError.of(f"{folder}: there is no {_ADAPTER_WEIGHTS[0]}", "PEFT's `save_pretrained` writes it")
        name = program_name(_folder_name(folder))
        name = f"_{name}" if name[0].isdigit() else name
        if name in found:
            raise InputError.of(f"two adapters would be called `{name}`", "rename the folder of one")
        roots = dict.fromkeys([*files.others, *(own.root for own, _ in found.values()), folder.resolve().parent])
        found[name] = Files(folder, files.beside, tuple(roots)), weights
    return found


def _with_adapters(methods: Methods, adapters: Collection[str], kind: str) -> list[str]:
    """The lines of `methods`, with a method for each adapter. A task with the method `forward` needs no lines for
    methods. Refuses other models with several methods, because it is unknown which of them an adapter changes."""
    if not adapters or any(
        f"  task: {name}" in methods.model for name, task in TASKS.items() if "forward" in task.entries
    ):
        return methods.lines
    if methods.lines[:1] != ["forward:"]:
        hint = "write `adapter` in the methods that the adapter changes: see the page `LoRA`"
        raise InputError.of(f"no first manifest with adapters is known for `{kind}`", hint)
    own = [[f"forward_{name}:", "  entry: forward", f"  adapter: {name}", *methods.lines[1:]] for name in adapters]
    return [*methods.lines, *itertools.chain(*own)]


def _dtype(config: dict[str, Any], quantized: bool) -> list[str]:
    """A list with the line of `model` that converts a checkpoint of 16 bits. Quantized files are read in float32."""
    dtype = config.get("dtype", config.get("torch_dtype"))
    why = "GGUF files are read in it" if quantized else f"the checkpoint has {dtype}"
    return [f"dtype: float32   # {why}"] if dtype in ("bfloat16", "float16") else []


def _checkpoint(files: Files) -> list[str]:
    """The file that `model.weights` names, and the shards that it lists. Empty if there are no weights."""
    for name in _WEIGHTS:
        if files.has(name):
            return [name]
        if files.has(f"{name}{_INDEX}"):
            return [f"{name}{_INDEX}", *_shards(files, f"{name}{_INDEX}")]
    quantized = _of_suffix(files.folder, GGUF_SUFFIX)
    if len(quantized) > 1:
        parts = [name for name in quantized if _GGUF_PART.search(name)]
        hint = "merge its parts with llama.cpp's `llama-gguf-split --merge`" if parts else "name one: "
        hint += "" if parts else f"`--huggingface {files.folder / quantized[0]}`"
        raise InputError.of(f"{files.folder} has several GGUF files: {_shown(quantized)}", hint)
    others = [name for name in _of_suffix(files.folder, ".safetensors") if name not in _ADAPTER_WEIGHTS]
    if others and not quantized:
        message = f"{files.folder} has {_shown(others)}, and neither {_WEIGHTS[0]} nor {_WEIGHTS[0]}{_INDEX}"
        hint = "download the index too; a single file with the names of transformers is called model.safetensors"
        raise InputError.of(message, hint)
    return quantized


def _shards(files: Files, index: str) -> list[str]:
    """The files that an index of weights lists. Refuses an index that lists a missing file."""
    shards = read_json(files.folder / index, _INDEX_BYTES, "an index of weights").get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(each, str) for each in shards.values()):
        raise InputError.of(f"{files.folder / index}: not an index of weights: `weight_map` does not name files")
    listed = sorted(set(shards.values()))
    missing = [name for name in listed if files.names(name) and not files.has(name)]
    if missing:
        message = f"{files.folder / index} lists {len(missing)} of {len(listed)} files that are not there"
        raise InputError.of(f"{message}: {_shown(missing)}", "download the folder again: its weights are not complete")
    return listed


def _of_suffix(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{suffix}") if is_file(path))


def _shown(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:_FILES_SHOWN]) + (", ..." if len(names) > _FILES_SHOWN else "")


def _folder_name(folder: Path) -> str:
    """The name of a folder; in a hub's cache, that of the model."""
    path = folder.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.rpartition("--")[2]
    return path.name
