"""What is known about a model, and the texts of its manifest and its BUILD target."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etkit.authoring.first_manifest.hub import Snapshot
from etkit.authoring.targets.starlark import rule_call

_RUNNERS = {
    "executorch-asr/v1": "ExecuTorch's runner for speech runs the program; see the page `Speech and translation`",
    "executorch-llm/v1": "ExecuTorch's runner for language models runs the program",
    "executorch-multimodal/v1": "ExecuTorch's runner for images and text runs the program",
}

QUANTIZE = """\
  # Linear layers in 4 bits and embeddings in 8 make the program smaller: see the page `Quantization`.
  # quantize: {torchao: [{config: 8da4w, scales: hqq_scale_only}, {config: int8, layers: [embedding]}]}
"""
PACKED = """\
  # The weights are packed: `packed` keeps their integers where XNNPACK can hold them, and the build says where not. An
  # entry after it, such as {config: 8da4w}, quantizes the others again: see the page `Quantized checkpoints`.
  quantize: {torchao: [{config: packed}]}
"""
CALIBRATE = """\
  # 8 bits make the program smaller and faster. Calibration should see real inputs: see the page `Quantization`. The
  # export then reads the weights: in a BUILD file, move them from `weights` to `data`.
  # quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}
"""
LINEAR = """\
  # Linear layers in 8 bits make the program smaller: see the page `Quantization`.
  # quantize: {torchao: [{config: 8da8w}]}
"""


@dataclass(frozen=True)
class First:
    """What is known about a model, for its first manifest and BUILD target.

    Attributes:
        name: The name of the program.
        model: The lines of `model`, without their indentation.
        methods: The lines of `methods`, without their indentation.
        hint: The comment about quantization, or the line that asks for it.
        remarks: Comments for the user, each of one line.
        runner: ExecuTorch's runner that can run the program; None if there is none.
        srcs: The Python sources.
        data: The files that the export reads.
        checkpoint: What `model.weights` names; None if the weights are random.
        weights_of_children: Files with the weights of children of the model, each with the name of its child.
        weights: The files that only lowering reads.
        tokenizer: The files of the tokenizer.
        chats: Whether the tokenizer has a chat template.
        adapters: The files with the weights of LoRA adapters, by the adapter's name.
        roots: Further directories that the build has to search.
        config: The configuration of a model of Hugging Face.
        snapshot: The model on a hub, if it was downloaded.
        open_weights: Why no file has the weights, if some hold tensors of the model.
        guesses: The inputs of methods that were found by trying, as in a manifest; None if no inputs fit.
        backend: The backend that gets what it can compute; None for ExecuTorch's own kernels.
    """

    name: str
    model: list[str]
    methods: list[str]
    hint: str
    remarks: list[str] = field(default_factory=list)
    runner: str | None = None
    srcs: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    checkpoint: str | None = None
    weights_of_children: dict[str, str] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    tokenizer: list[str] = field(default_factory=list)
    chats: bool = False
    adapters: dict[str, str] = field(default_factory=dict)
    roots: list[Path] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    open_weights: list[str] = field(default_factory=list)
    guesses: dict[str, str | None] = field(default_factory=dict)
    backend: str | None = "xnnpack"

    @property
    def manifest(self) -> str:
        """The text of the manifest."""
        lines = [f"# {each}" for each in self.remarks]
        lines += ["schema: executorch-model/v1", f"name: {_scalar(self.name)}"]
        lines += [f"runner: {self.runner}   # {_RUNNERS[self.runner]}"] if self.runner else []
        lines += [f"tokenizer: {json.dumps(self.tokenizer)}"] if self.tokenizer else []
        lines += ["", "model:", *(f"  {line}" for line in self.model)]
        lines += self._lines_of_weights
        about = "CPUs; the page `Backends` has the others" if self.backend == "xnnpack" else "the page `Backends`"
        lines += ["", "defaults:", f"  partitioners: [{self.backend or ''}]   # {about}", self.hint]
        lines += ["methods:", *(f"  {line}" for line in self.methods), ""] if self.methods else []
        return "\n".join(lines)

    @property
    def checkpoints(self) -> list[str | dict[str, Any]]:
        """The entries of `model.weights`."""
        entries: list[str | dict[str, Any]] = [self.checkpoint] if self.checkpoint else []
        return entries + [{"file": file, "rename": {"*": f"{child}.*"}} for file, child in self._of_children]

    @property
    def _of_children(self) -> list[tuple[str, str]]:
        return [*self.weights_of_children.items()] if self.checkpoint else []

    @property
    def _lines_of_weights(self) -> list[str]:
        first, *others = self.checkpoints or [""]
        if not others:
            return [f"  weights: {json.dumps(first)}"] if first else []
        return ["  weights:", *(f"    - {json.dumps(each)}" for each in (first, *others))]

    @property
    def target(self) -> str:
        """The text of the BUILD target, with its `load` line."""
        attributes = {
            "name": self.name,
            "srcs": self.srcs,
            "adapters": [*self.adapters.values()],
            "data": [*map(self._label, self.data)],
            "manifest": f"{self.name}.yaml",
            "named_data": [*self.adapters],
            "tokenizer": [*map(self._label, self.tokenizer)],
            "weights": [*map(self._label, self.weights)],
        }
        load = 'load("@rules_executorch//rules:defs.bzl", "executorch_program")'
        return f"{load}\n\n{rule_call('executorch_program', attributes)}"

    @property
    def pins(self) -> str | None:
        """The text of the `.bzl` file that pins the files of a hub; None if there are none."""
        return None if self.snapshot is None else self.snapshot.rule(self._repository)

    @property
    def _repository(self) -> str:
        return f"{self.name}_files"

    def _label(self, file: str) -> str:
        """The label of a file. Files of a hub are in a repository of their own."""
        of_hub = self.snapshot is not None and file.startswith(f"{self.snapshot.name}/")
        return f"@{self._repository}//:{file}" if of_hub else file


def _scalar(name: str) -> str:
    """A name in YAML, in quotes if it would be a number or a constant."""
    return json.dumps(name) if name[0].isdigit() or name in ("true", "false", "null") else name


def program_name(text: str) -> str:
    """Turns a text into a name for a program."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_").lower()[:100] or "model"


def renamed(first: First, name: str) -> First:
    """Returns `first` with another name for the program.

    Raises:
        InputError: It cannot be the name of a program.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}", name):
        raise InputError.of(f"--name {name}: a name has letters, digits, `_` and `-`")
    return replace(first, name=name)
