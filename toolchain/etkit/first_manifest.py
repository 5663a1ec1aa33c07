"""Writes the first manifest and BUILD target of a model: of a folder of Hugging Face, or of a factory.

Of a folder, only JSON files are read. Nothing in it runs, and torch is not imported. A factory is called, because only
its module says which inputs it takes.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files
from etbuild.files.weights_suffixes import GGUF_SUFFIX
from etbuild.inputs.declared import Inputs, is_file
from etbuild.manifest.tasks import IMAGE_TOWERS, TASKS
from etkit import first_embedder, first_image, first_sound
from etkit.targets.starlark import rule_call

if TYPE_CHECKING:
    import torch

    from etbuild.manifest.sections import Method, Model

_CONFIG_BYTES, _INDEX_BYTES = 1 << 20, json_file.MAX_BYTES
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as `save_pretrained` writes them; with `.index.json` if split
_REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_KWARGS = """for example --kwargs '{"layers": 2}'"""
_SHOWN = 100  # characters of a name in a file
_FILES_SHOWN = 3
_LONGEST_CACHE = 2048  # tokens; the memory of a cache grows with it
_LONGEST_CALL = 128  # tokens; a longer prompt takes several calls
_LONGEST_TEXT = 512  # tokens; of an encoder, and of the decoder of a model that has both
_RUNNERS = {
    "executorch-asr/v1": "ExecuTorch's runner for speech runs the program; for text, see docs/huggingface.md",
    "executorch-llm/v1": "ExecuTorch's runner for language models runs the program",
    "executorch-multimodal/v1": "ExecuTorch's runner for images and text runs the program",
}
_SEQ2SEQ = ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5")  # these are tried
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_OTHER_ATTENTION = ("bloom", "deepseek_v2", "deepseek_v3", "falcon", "gemma2", "gpt_oss", "mpt")  # ExecuTorch lacks it
_WHISPER = "WhisperForConditionalGeneration"
_WRITERS = ("ForConditionalGeneration", "MTModel")  # the classes of encoders and decoders that write text
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # as PEFT writes them
_GGUF_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_TRIES = 60  # this many combinations of inputs are tried on a module

_QUANTIZE = """\
  # Linear layers in 4 bits and embeddings in 8 make the program smaller. The export then reads the weights: in BUILD,
  # move them from `weights` to `data`.
  # quantize: {torchao: [{config: 8da4w}, {config: int8, layers: [embedding]}]}
"""
_PACKED = """\
  # The weights are packed: `packed` keeps their integers where XNNPACK can hold them, and the build says where not. An
  # entry after it, such as {config: 8da4w}, quantizes the others again: see docs/huggingface.md.
  quantize: {torchao: [{config: packed}]}
"""
_CALIBRATE = """\
  # 8 bits make the program smaller and faster. Calibration should see real inputs: see docs/quantization.md. The export
  # then reads the weights: in BUILD, move them from `weights` to `data`.
  # quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}
"""


@dataclass(frozen=True)
class First:
    """What is known about a model, for its first manifest and BUILD target.

    Attributes:
        name: The name of the program.
        model: The lines of `model`, without their indentation.
        methods: The lines of `methods`, without their indentation.
        hint: The comment about quantization.
        remark: What the user should know, a comment of one line. Empty if there is nothing.
        runner: ExecuTorch's runner that can run the program; None if there is none.
        srcs: The Python sources.
        data: The files that the export reads.
        checkpoint: What `model.weights` names; None if the weights are random.
        weights: The files that only lowering reads.
        tokenizer: The files of the tokenizer.
        adapters: The files with the weights of LoRA adapters, by the adapter's name.
    """

    name: str
    model: list[str]
    methods: list[str]
    hint: str
    remark: str = ""
    runner: str | None = None
    srcs: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    checkpoint: str | None = None
    weights: list[str] = field(default_factory=list)
    tokenizer: list[str] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> str:
        """The text of the manifest."""
        lines = [f"# {self.remark}"] if self.remark else []
        lines += ["schema: executorch-model/v1", f"name: {self.name}"]
        lines += [f"runner: {self.runner}   # {_RUNNERS[self.runner]}"] if self.runner else []
        lines += [f"tokenizer: {json.dumps(self.tokenizer)}"] if self.tokenizer else []
        lines += ["", "model:", *(f"  {line}" for line in self.model)]
        lines += [f"  weights: {json.dumps(self.checkpoint)}"] if self.checkpoint else []
        lines += ["", "defaults:", "  partitioners: [xnnpack]   # CPUs; docs/backends.md has the others", self.hint]
        lines += ["methods:", *(f"  {line}" for line in self.methods), ""] if self.methods else []
        return "\n".join(lines)

    @property
    def target(self) -> str:
        """The text of the BUILD target, with its `load` line."""
        attributes = {
            "name": self.name,
            "srcs": self.srcs,
            "adapters": [*self.adapters.values()],
            "data": self.data,
            "manifest": f"{self.name}.yaml",
            "named_data": [*self.adapters],
            "tokenizer": self.tokenizer,
            "weights": self.weights,
        }
        load = 'load("@rules_executorch//rules:defs.bzl", "executorch_program")'
        return f"{load}\n\n{rule_call('executorch_program', attributes)}"


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
    config = _read_json(folder / "config.json", _CONFIG_BYTES, "the configuration of a model")
    listed = config.get("architectures")
    kind = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", kind):
        hint = 'add for example `"architectures": ["LlamaForCausalLM"]`: the class of the model in transformers'
        raise InputError.of(f"{folder / 'config.json'}: `architectures` names no class", hint)
    files = _Files(folder, beside)
    methods = _methods(kind, config, files)
    if methods is None:
        hint = "write the manifest by hand: its inputs are those of the class's `forward` (docs/huggingface.md)"
        raise InputError.of(f"{folder}: no first manifest is known for `{kind}`", hint)
    checkpoint = [place.name] if place != folder else _checkpoint(folder)
    packed = isinstance(config.get("quantization_config"), dict)
    quantized = [name for name in checkpoint if packed or name.endswith(GGUF_SUFFIX)]  # the export reads these
    remark = methods.remark if checkpoint else "The folder has no weights: those of the program are random."
    if files.has(_ADAPTER_CONFIG) and folder not in adapters:
        remark = f"The folder has a LoRA adapter too, which `--adapter {folder}` adds."
    if "auto_map" in config:
        remark = "The folder has code of its own. It does not run: the class is that of transformers."
    config_file = files.named("config.json")
    found = _adapters(adapters, files)
    return First(
        name=_program_name(_folder_name(folder)),
        model=[
            "huggingface:",
            f"  class: {methods.model_class or kind}",
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
        hint=_PACKED if packed and checkpoint else methods.hint,
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
        of = _read_json(folder / _ADAPTER_CONFIG, _CONFIG_BYTES, "the configuration of an adapter")
        base = of.get("base_model_name_or_path")
        which = f"of `{base}`" if isinstance(base, str) and len(base) < _SHOWN else "of a model"
        message = f"{folder}: this is a LoRA adapter {which}, and not a model"
        raise InputError.of(message, f"write `--huggingface` with the folder of the model, and `--adapter {folder}`")
    if any(folder.glob(f"*{GGUF_SUFFIX}")):
        hint = "put the `config.json` and the tokenizer of the same model beside it"
        raise InputError.of(f"{folder}: a GGUF file needs the configuration of its model", hint)


def _adapters(folders: Sequence[Path], files: _Files) -> dict[str, tuple[str, str]]:
    """The files with the configuration and the weights of each adapter, by the adapter's name."""
    found: dict[str, tuple[str, str]] = {}
    for folder in folders:
        config = _read_json(folder / _ADAPTER_CONFIG, _CONFIG_BYTES, "the configuration of an adapter")
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
        name = _program_name(folder.resolve().name)
        name = f"_{name}" if name[0].isdigit() else name
        if name in found:
            raise InputError.of(f"two adapters would be called `{name}`", "rename the folder of one")
        found[name] = own.named(_ADAPTER_CONFIG), own.named(weights)
    return found


def _with_adapters(methods: _Methods, adapters: Collection[str], kind: str) -> list[str]:
    """The lines of `methods`, with a method for each adapter. A task with the method `forward` gets its methods without
    lines. Refuses other models with several methods: it is not known which of them an adapter changes."""
    if not adapters or any(
        f"  task: {name}" in methods.model for name, task in TASKS.items() if "forward" in task.entries
    ):
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


def _read_json(path: Path, limit: int, what: str) -> dict[str, Any]:
    names = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}  # transformers writes these
    try:
        content = json_file.parse(regular_files.read(path, limit), names)
    except OSError as error:
        raise InputError.of(f"{path}: cannot be read: {error.strerror}", f"it should be {what}") from None
    except ValueError as error:
        raise InputError.of(f"{path}: not {what}: {error}") from None
    if not isinstance(content, dict):
        raise InputError.of(f"{path}: not {what}: it is not a JSON object")
    return content


def _checkpoint(folder: Path) -> list[str]:
    """The file that `model.weights` names, and the shards that it lists. Empty if there are no weights."""
    for name in _WEIGHTS:
        if is_file(folder / name):
            return [name]
        index = folder / f"{name}.index.json"
        if is_file(index):
            shards = _read_json(index, _INDEX_BYTES, "an index of weights").get("weight_map")
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


@dataclass(frozen=True)
class _Files:
    """The files of a folder, as a manifest in the directory `beside` names them."""

    folder: Path
    beside: Path

    def has(self, file: str) -> bool:
        """Whether the folder has a file."""
        return is_file(self.folder / file)

    def json(self, file: str) -> dict[str, Any]:
        """The content of a JSON file; empty if there is none."""
        return _read_json(self.folder / file, _CONFIG_BYTES, "a JSON file of transformers") if self.has(file) else {}

    def named(self, file: str) -> str:
        """The name of a file, relative to the manifest's directory if the folder is below it, or else to the folder.
        Refuses a name that a manifest cannot have."""
        below = self.folder.resolve().is_relative_to(self.beside.resolve())
        prefix = self.folder.resolve().relative_to(self.beside.resolve()) if below else Path()
        name = (prefix / file).as_posix()
        if not file or not re.fullmatch(r"(?!/)[A-Za-z0-9_./+@ -]+", name) or ".." in name.split("/"):
            raise InputError.of(
                f"{self.folder}: {json.dumps(file)[:100]} is not a name for a manifest", "rename the file"
            )
        return name


def _folder_name(folder: Path) -> str:
    """The name of a folder; in a hub's cache, that of the model."""
    path = folder.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.rpartition("--")[2]
    return path.name


def _program_name(text: str) -> str:
    """A text as the name of a program."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_").lower()[:100] or "model"


@dataclass(frozen=True)
class _Methods:
    """The methods for a kind of models: their lines in the manifest, lines of `model`, and what goes with them.
    `model_class` is the class if it is not that of the configuration."""

    lines: list[str]
    model: list[str] = field(default_factory=list)
    hint: str = _QUANTIZE
    runner: str | None = None
    data: list[str] = field(default_factory=list)
    tokenizer: list[str] = field(default_factory=list)
    model_class: str | None = None
    remark: str = ""


def _number(config: dict[str, Any], default: int, *keys: str) -> int:
    """The first of some keys of a configuration that is a positive number."""
    values = [config.get(key) for key in keys]
    return next((each for each in values if type(each) is int and 0 < each < 1 << 31), default)


@dataclass(frozen=True)
class _TextTask:
    """A task of `model.huggingface` that writes text, which gets its methods without lines.

    Attributes:
        runner: ExecuTorch's runner for it.
        longest: The tokens of the cache at most.
        keys: The keys of the configuration that may have fewer.
        lines: Lines of `huggingface`, with `{length}` and so on.
    """

    runner: str
    longest: int
    keys: tuple[str, ...]
    lines: tuple[str, ...]


_TEXT_TASKS = {
    "text-generation": _TextTask(
        "executorch-llm/v1",
        _LONGEST_CACHE,
        ("max_position_embeddings", "n_positions"),
        ("cache: {{max_length: {length}, max_seq_length: {call}, kind: {kind}}}   # tokens in all, and in one call",),
    ),
    "seq2seq": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_position_embeddings", "n_positions"),
        (
            "max_source_length: {length}   # tokens of the encoder",
            "cache: {{max_length: {length}}}   # tokens of the decoder",
        ),
    ),
    "image-text-to-text": _TextTask(
        "executorch-multimodal/v1",
        _LONGEST_CACHE,
        ("max_position_embeddings",),
        ("cache: {{max_length: {length}, kind: custom}}   # `max_seq_length` saves memory",),
    ),
    "speech-to-text": _TextTask(
        "executorch-asr/v1",
        _LONGEST_TEXT,
        ("max_target_positions", "max_position_embeddings"),
        ("cache: {{max_length: {length}}}   # tokens of the decoder",),
    ),
}


def _text(name: str, config: dict[str, Any], files: _Files) -> _Methods:
    """A model that writes text. It has a runner only if the files say which tokens end a text."""
    task, settings = _TEXT_TASKS[name], "generation_config.json"
    length = min(task.longest, _number(config, task.longest, *task.keys))
    kind = "static" if config.get("model_type") in _OTHER_ATTENTION else "custom"
    data = [files.named(settings)] if files.has(settings) else []
    model = [f"  task: {name}", *(_length_of_sound(config, files) if name == "speech-to-text" else [])]
    model += [*(f"  generation_config: {json.dumps(file)}" for file in data)]
    model += [f"  {line.format(length=length, call=min(_LONGEST_CALL, length), kind=kind)}" for line in task.lines]
    ends = {**config, **files.json(settings)}.get("eos_token_id")
    tokenizer = [files.named(file) for file in _TOKENIZER if files.has(file)]
    return _Methods([], model, runner=None if ends is None else task.runner, data=data, tokenizer=tokenizer)


def _longest_text(config: dict[str, Any]) -> int:
    """The largest number of tokens that an encoder takes."""
    length = _number(config, _LONGEST_TEXT, "max_position_embeddings")
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        length -= 2  # their positions begin after that of the padding
    return length


def _embedder(kind: str, embedder: first_embedder.Embedder, config: dict[str, Any], files: _Files) -> _Methods:
    """A model of sentence-transformers. Its checkpoint is that of the model without a head, also where the
    configuration names a class with one."""
    length = min(_LONGEST_TEXT, _longest_text(config), embedder.longest or _LONGEST_TEXT)
    lines = [
        "  task: feature-extraction",
        f"  pooling: {embedder.pooling}",
        *(["  normalize: true"] if embedder.normalize else []),
        f"  max_source_length: {length}   # tokens of a text",
    ]
    tokenizer = [files.named(file) for file in _TOKENIZER if files.has(file)]
    model_class = kind if kind.endswith("EncoderModel") else "AutoModel"
    return _Methods([], lines, tokenizer=tokenizer, model_class=model_class, remark=embedder.remark)


def _length_of_sound(config: dict[str, Any], files: _Files) -> list[str]:
    """The line of `huggingface` with the length of a sound, in a list; empty if it is not known."""
    found = first_sound.length(config, files.json("preprocessor_config.json"))
    return [] if found is None else [f"  max_source_length: {found[0]}   # {found[1]} of ten seconds, in each call"]


def _single_call(name: str, config: dict[str, Any], files: _Files) -> _Methods | None:
    """A model of a task that has all of its input in one call. None if the length of a sound is not known."""
    model, lines = [f"  task: {name}"], []
    if TASKS[name].takes == "sound":
        sound = _length_of_sound(config, files)
        tokenizer = [files.named(file) for file in (*_TOKENIZER, "vocab.json") if files.has(file)]
        return _Methods([], [*model, *sound], hint=_CALIBRATE, tokenizer=tokenizer) if sound else None
    if TASKS[name].takes == "tokens":
        length = min(_LONGEST_TEXT, _longest_text(config))
        model.append(f"  max_source_length: {length}   # tokens of a text")
        tokenizer = [files.named(file) for file in _TOKENIZER if files.has(file)]
        return _Methods([], model, tokenizer=tokenizer)
    if first_image.of_config(config) is None:
        height, width = first_image.of_processor(files.json("preprocessor_config.json"))
        shape = [1, _number(config, 3, "num_channels"), height, width]
        lines = [
            "forward:",
            f"  example_inputs: [{{shape: {shape}}}]   # pixel_values: the model takes other sizes too",
        ]
    return _Methods(lines, model, hint=_CALIBRATE)


def _task_of(kind: str, config: dict[str, Any]) -> str | None:
    """The task with one call that a class of models is for: `BertForTokenClassification` is one of
    `AutoModelForTokenClassification`. A decoder of text after an encoder needs tokens that are not known here."""
    for name, task in TASKS.items():
        head = task.model_class.removeprefix("AutoModel")
        if task.outputs and head and kind.endswith(head):
            return name if task.takes != "tokens" or config.get("is_encoder_decoder") is not True else None
    return None


def _encoder(config: dict[str, Any]) -> _Methods:
    length = _longest_text(config)
    return _Methods(
        [
            "forward:",
            f"  example_inputs: [{{shape: [1, {min(16, length)}], dtype: int64}}]   # input_ids",
            f"  dynamic_shapes: [[null, {{dim: seq, min: 2, max: {length}}}]]",
        ]
    )


def _image(config: dict[str, Any]) -> _Methods:
    size = config.get("image_size")
    height, width = size if isinstance(size, list) and len(size) == 2 else (_number(config, 224, "image_size"),) * 2
    channels = _number(config, 3, "num_channels")
    sizes = [each if type(each) is int and 0 < each < 1 << 31 else 224 for each in (height, width)]
    example = f"{{shape: [1, {channels}, {sizes[0]}, {sizes[1]}]}}"
    return _Methods(["forward:", f"  example_inputs: [{example}]   # pixel_values"], hint=_CALIBRATE)


def _sees_images(config: dict[str, Any]) -> bool:
    """Whether a model is one of those that `task: image-text-to-text` knows."""
    text, vision = config.get("text_config"), config.get("vision_config")
    towers = IMAGE_TOWERS.get(str(config.get("model_type")), ())
    if not (isinstance(text, dict) and isinstance(vision, dict) and towers):
        return False
    return vision.get("model_type", towers[0]) in towers  # the first is transformers' default


def _methods(kind: str, config: dict[str, Any], files: _Files) -> _Methods | None:
    """The methods of a model of this class. None if the class is not known here, such as one with several inputs."""
    model_type = config.get("model_type")
    embedder = first_embedder.read(files.folder)
    if embedder is not None:
        return _embedder(kind, embedder, config, files)
    task = _task_of(kind, config)
    if task is not None:
        return _single_call(task, config, files)
    if "text_config" not in config and kind.endswith(("ForCausalLM", "LMHeadModel")):
        return _text("text-generation", config, files)
    if (model_type == "whisper" and kind == _WHISPER) or model_type == "moonshine":
        return _text("speech-to-text", config, files)
    if _sees_images(config):
        return _text("image-text-to-text", {**config, **config["text_config"]}, files)
    if model_type in _SEQ2SEQ and kind.endswith(_WRITERS):
        return _text("seq2seq", config, files)
    if config.get("is_encoder_decoder") is True or any(key.endswith("_config") for key in config):
        return None
    if "conv_dim" in config and "feat_proj_dropout" in config:
        lines = ["forward:", "  example_inputs: [{shape: [1, 16000]}]   # input_values: one second at 16 kHz"]
        return _Methods(lines, hint=_CALIBRATE)
    if "vocab_size" not in config and "num_channels" in config:
        return _image(config)
    return _encoder(config) if "vocab_size" in config and "image_size" not in config else None


def of_factory(reference: str, kwargs: str, beside: Path) -> First:
    """What the first manifest says about the module that a factory returns. Calls the factory.

    Args:
        reference: The factory, as `module:callable`.
        kwargs: Its keyword arguments, as a JSON object.
        beside: The directory of the manifest, where the sources are.

    Raises:
        InputError: The factory's module is not there.
        BuildError: The factory failed, or did not return a module that can be exported.
    """
    from etbuild.inputs.import_graph import used_sources
    from etbuild.inputs.step_context import StepContext
    from etbuild.inputs.user_code import importable
    from etbuild.plan.plan import from_manifest
    from etbuild.processes.library_output import stdout_for_results

    if not re.fullmatch(_REFERENCE, reference):
        raise InputError.of(f"--factory {reference}: expected MODULE:CALLABLE", "for example model:create")
    place, _, _ = reference.partition(":")
    name = _program_name(beside.resolve().name if place in ("model", "models") else place.rpartition(".")[2])
    model: Model = {"factory": reference, "kwargs": _arguments(kwargs)}
    methods: dict[str, Method] = {"forward": {"example_inputs": [{"shape": [1]}]}}  # not used: the plan needs a method
    plan = from_manifest({"name": name, "model": model, "methods": methods})
    inputs = Inputs(roots=[beside])
    used = used_sources(inputs, plan.export_plan)
    with stdout_for_results(), importable(used, []) as finder:
        from etbuild.model import module as modules

        root = modules.create(plan.model, StepContext(inputs, finder))
        lines, unknown = _methods_of(root)
    remark = f"Change `example_inputs`: {', '.join(unknown)} did not take what was tried." if unknown else ""
    srcs = [each for each in used.sources if (beside / each).is_file()]
    written = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in model.items() if value]
    return First(name, written, lines, _CALIBRATE, remark, srcs=srcs)


def _arguments(text: str) -> dict[str, Any]:
    from etbuild.manifest import parameters

    try:
        found = json_file.parse(text.encode())
    except ValueError as error:  # this includes text that UTF-8 cannot encode
        raise InputError.of(f"--kwargs {text}: {error}", _KWARGS) from None
    if not isinstance(found, dict) or not all(key.isidentifier() for key in found):
        raise InputError.of(f"--kwargs {text}: not an object whose keys are names", _KWARGS)
    if any(parameters.references(found)):
        raise InputError.of(f"--kwargs {text}: in a manifest, this means a parameter", "write the manifest by hand")
    return found


def _methods_of(root: torch.nn.Module) -> tuple[list[str], list[str]]:
    """The lines of `methods` for a module, and the methods for which no inputs were found."""
    import torch

    kinds = [kind for kind in type(root).__mro__ if kind.__module__.partition(".")[0] not in ("torch", "builtins")]
    of_user = dict.fromkeys(name for kind in kinds for name, value in vars(kind).items() if inspect.isfunction(value))
    own = [name for name in of_user if not name.startswith("_")]
    names = ["forward"] if type(root).forward is not torch.nn.Module.forward else own
    lines, unknown = [], []
    for name in names or [name for name, _ in root.named_children()]:
        found = _inputs_of(root, getattr(root, name))
        if found is None:
            unknown.append(name)
        lines += [f"{name}:", f"  example_inputs: [{', '.join(['{shape: [1, 16]}'] if found is None else found)}]"]
    return lines, unknown


def _inputs_of(root: torch.nn.Module, method: Callable[..., Any]) -> list[str] | None:
    """Inputs that a method or a child takes in eager PyTorch, in YAML; None if none of the likely ones fit."""
    import torch

    child = method if isinstance(method, torch.nn.Module) else None
    with suppress(ValueError, TypeError):  # a method without a signature
        parameters = inspect.signature(method if child is None else child.forward).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        count = sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)
        likely = list(dict.fromkeys(_likely(root if child is None else child)))
        with torch.no_grad():
            for shapes in itertools.islice(itertools.product(likely, repeat=count), _TRIES):
                made = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in shapes]
                with suppress(Exception):  # it is the user's code: any error says that the inputs do not fit
                    method(*made)
                    return [_yaml(shape, dtype) for shape, dtype in shapes]
    return None


def _yaml(shape: tuple[int, ...], dtype: str) -> str:
    return f"{{shape: {list(shape)}{'' if dtype == 'float32' else f', dtype: {dtype}'}}}"


def _likely(root: torch.nn.Module) -> Iterator[tuple[tuple[int, ...], str]]:
    """Inputs that a module is likely to take, as shape and dtype: those of its first layers, then common ones."""
    import torch

    dtypes = (str(each.dtype).removeprefix("torch.") for each in root.parameters() if each.is_floating_point())
    real = next(dtypes, "float32")
    layers = [layer for layer in root.modules() if next(layer.children(), None) is None][:4]
    for layer in layers:
        if isinstance(layer, torch.nn.Embedding):
            yield from ((shape, "int64") for shape in ((1, 16), (1, 1), (1,)))
        elif isinstance(layer, torch.nn.Conv2d):
            yield from (((1, layer.in_channels, size, size), real) for size in (224, 64, 28))
        elif isinstance(layer, torch.nn.Conv1d):
            yield (1, layer.in_channels, 128), real
        elif isinstance(layer, (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)):
            yield (1, 16, layer.input_size), real
        elif isinstance(layer, torch.nn.Linear):
            yield (1, layer.in_features), real
            yield (1, 16, layer.in_features), real
    yield from (((1, 3, 224, 224), real), ((1, 16), real), ((1, 16), "int64"), ((1,), "int64"))


def renamed(first: First, name: str) -> First:
    """The same with another name for the program.

    Raises:
        InputError: It cannot be the name of a program.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}", name):
        raise InputError.of(f"--name {name}: a name has letters, digits, `_` and `-`")
    return replace(first, name=name)
