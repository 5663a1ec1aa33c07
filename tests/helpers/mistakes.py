"""Mistakes of people who know PyTorch, each with what its message must name: the place, the cause, what to write."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: net.safetensors}
defaults: {partitioners: [xnnpack]}
methods:
  forward:
    example_inputs: [{shape: [2, 8]}]
"""
MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x).relu()


def create():
    torch.manual_seed(0)
    return Net()
"""
WITHOUT_WEIGHTS = MANIFEST.replace(", weights: net.safetensors", "")
STATE = {"linear.weight": torch.ones(4, 8), "linear.bias": torch.zeros(4)}


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Attributes:
        name: What was done wrong.
        says: What the message must contain: the place, the cause, and what to write.
        files: Files of the project that are other than the right ones.
        command: The arguments of `etbuild`.
        built: Whether it needs a build, which takes seconds.
        code: The exit code.
        needs_program: Whether `out/net.pte` must be there.
    """

    name: str
    says: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    command: tuple[str, ...] = ("build", "net.yaml", "-o", "out")
    built: bool = False
    code: int = 2
    needs_program: bool = False


def right() -> dict[str, bytes]:
    """The files of the right project."""
    return {"net.yaml": MANIFEST.encode(), "model.py": MODEL.encode(), "net.safetensors": save(STATE)}


def manifest(name: str, old: str, new: str, *says: str, **more: Any) -> Mistake:
    """A mistake in the manifest: a text is replaced by another one."""
    assert old in MANIFEST, old
    return Mistake(name, says, {"net.yaml": MANIFEST.replace(old, new).encode()}, ("validate", "net.yaml"), **more)


def added(name: str, line: str, *says: str, **more: Any) -> Mistake:
    """A line too many at the end of the manifest."""
    return Mistake(name, says, {"net.yaml": f"{MANIFEST}{line}\n".encode()}, ("validate", "net.yaml"), **more)


def model(name: str, old: str, new: str, *says: str, weights: bool = False, code: int = 1, **more: Any) -> Mistake:
    """A mistake in the model: a text is replaced by another one."""
    assert old in MODEL, old
    files = {"model.py": MODEL.replace(old, new).encode(), **more.pop("files", {})}
    files.setdefault("net.yaml", (MANIFEST if weights else WITHOUT_WEIGHTS).encode())
    return Mistake(name, says, files, built=True, code=code, **more)


def weights(name: str, content: bytes, *says: str, file: str = "net.safetensors", **more: Any) -> Mistake:
    """A mistake in the weights."""
    files = {file: content, "net.yaml": MANIFEST.replace("net.safetensors", file).encode()}
    return Mistake(name, says, {**files, **more.pop("files", {})}, built=True, **more)


def inputs(name: str, new: str, *says: str, code: int = 2, **more: Any) -> Mistake:
    """A mistake in the example inputs, which only the model shows."""
    text = WITHOUT_WEIGHTS.replace("[{shape: [2, 8]}]", new)
    return Mistake(name, says, {"net.yaml": text.encode()}, built=True, code=code, **more)


def integers(name: str, code: str, *says: str) -> Mistake:
    """A model that takes no floats, as which an input is read."""
    return model(name, "self.linear(x).relu()", code, "methods.forward", "model.py:11", *says)


def line(name: str, command: str, *says: str, **more: Any) -> Mistake:
    """A mistake on the command line."""
    return Mistake(name, says, command=tuple(command.split(" ")), **more)


def pickled(value: object) -> bytes:
    """A file of `torch.save`."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Evil:
    """Runs code when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("gotcha",)


IN_MANIFEST = (
    manifest("no schema", "schema: executorch-model/v1\n", "", "net.yaml:1:1", "`schema`", "executorch-model/v1"),
    manifest("a schema of tomorrow", "model/v1", "model/v9", "net.yaml:1:9: schema", "executorch-model/v1"),
    manifest("no name", "name: net\n", "", "net.yaml:1:1", "`name`"),
    manifest("a name with a slash", "name: net", "name: nets/net", "net.yaml:2:7: name", "nets/net"),
    manifest("a name with a space", "name: net", "name: my net", "net.yaml:2:7: name", "my net"),
    manifest("a name that YAML takes for a boolean", "name: net", "name: yes", "net.yaml:2:7: name", '"yes"'),
    manifest("no model", 'model: {factory: "model:create", weights: net.safetensors}\n', "", "net.yaml:1:1", "`model`"),
    manifest("a misspelled section", "methods:", "mehtods:", "net.yaml:5:1", "mehtods", "`methods`"),
    manifest("a misspelled key", "example_inputs", "example_input", "net.yaml:7:5", "`example_inputs`"),
    manifest("a factory without a function", "model:create", "model", "net.yaml:3:", "model.factory", "model:create"),
    Mistake(
        "a factory that is a file",
        ("net.yaml:3:", "model.factory", "write `model`, without `.py`"),
        {"net.yaml": MANIFEST.replace("model:create", "model.py:create").encode()},
        built=True,
    ),
    manifest("a factory that is called", "model:create", "model:create()", "net.yaml:3:", "model.factory"),
    manifest(
        "no method",
        "methods:\n  forward:\n    example_inputs: [{shape: [2, 8]}]\n",
        "methods: {}\n",
        "net.yaml:5:",
        "methods",
    ),
    manifest(
        "a method without inputs",
        "    example_inputs: [{shape: [2, 8]}]\n",
        "    partitioners: []\n",
        "net.yaml:6:3",
        "example_inputs",
    ),
    manifest("a method with a dash", "  forward:", "  forward-pass:", "net.yaml:6:3", "forward-pass"),
    manifest("a shape as a text", "[2, 8]", '"2,8"', "net.yaml:7:", "shape", "for example [1, 3, 64, 64]"),
    manifest("a shape without brackets", "[{shape: [2, 8]}]", "[{shape: 2, 8}]", "net.yaml:7:", "shape"),
    manifest("a size of -1", "[2, 8]", "[-1, 8]", "net.yaml:7:", "shape", "dynamic_shapes"),
    manifest("a size of None", "[2, 8]", "[None, 8]", "net.yaml:7:", "shape", "dynamic_shapes"),
    manifest("a size with a fraction", "[2, 8]", "[2.5, 8]", "net.yaml:7:", "shape", "2.5"),
    manifest(
        "a dtype of Python", "{shape: [2, 8]}", "{shape: [2, 8], dtype: float}", "net.yaml:7:", "dtype", "`float32`"
    ),
    manifest(
        "a dtype of torch",
        "{shape: [2, 8]}",
        "{shape: [2, 8], dtype: torch.float32}",
        "net.yaml:7:",
        "dtype",
        "`float32`",
    ),
    manifest(
        "inputs by name", "[{shape: [2, 8]}]", "{x: {shape: [2, 8]}}", "net.yaml:7:", "example_inputs", "example_kwargs"
    ),
    manifest(
        "a bare shape as an input",
        "[{shape: [2, 8]}]",
        "[[2, 8]]",
        "net.yaml:7:",
        "example_inputs",
        "for example {shape",
    ),
    manifest("a backend that is no list", "[xnnpack]", "xnnpack", "net.yaml:4:", "partitioners", "[xnnpack]"),
    manifest("a misspelled backend", "[xnnpack]", "[xnnpak]", "net.yaml:4:", "partitioners", "`xnnpack`"),
    manifest("the backend of another key", "partitioners", "backends", "net.yaml:4:", "backends", "`partitioners`"),
    manifest("a backend's class", "[xnnpack]", "[XnnpackPartitioner]", "net.yaml:4:", "partitioners", "`xnnpack`"),
    manifest(
        "quantize with a word",
        "{partitioners: [xnnpack]}",
        "{partitioners: [xnnpack], quantize: int8}",
        "net.yaml:4:",
        "quantize",
        "torchao",
    ),
    manifest(
        "a scheme that is not there",
        "{partitioners: [xnnpack]}",
        "{quantize: {torchao: [{config: int3}]}}",
        "net.yaml:4:",
        "config",
        "int4",
    ),
    manifest(
        "pt2e without quantizers", "{partitioners: [xnnpack]}", "{quantize: {pt2e: {}}}", "net.yaml:4:", "quantizers"
    ),
    manifest(
        "weights with an absolute path",
        "weights: net.safetensors",
        "weights: /tmp/net.safetensors",
        "net.yaml:3:",
        "weights",
        "/tmp/net.safetensors",
    ),
    manifest(
        "weights above the manifest",
        "weights: net.safetensors",
        "weights: ../net.safetensors",
        "net.yaml:3:",
        "weights",
        "../net.safetensors",
    ),
    manifest("a tab", "  forward:", "\tforward:", "net.yaml:6:1", "tab"),
    manifest("an open bracket", "[2, 8]}]", "[2, 8]}", "net.yaml:", "expected ',' or ']'"),
    added("a key twice", "name: other", "net.yaml:8:1", "name"),
    added("a limit with a unit", "checks: {max_program_bytes: 5kB}", "net.yaml:8:", "checks.max_program_bytes", "5kB"),
    added("a share in percent", "checks: {min_delegated: 95}", "net.yaml:8:", "checks.min_delegated", "0.95"),
    added("a misspelled check", "checks: {max_size: 5000}", "net.yaml:8:", "max_size", "`max_program_bytes`"),
    added("a check with a text", "checks: {finite: maybe}", "net.yaml:8:", "checks.finite", "true"),
    added(
        "a range that is upside down",
        "    dynamic_shapes: [[{dim: batch, min: 8, max: 2}, null]]",
        "net.yaml:8:",
        "dynamic_shapes",
        "min",
    ),
    added(
        "a range without an end", "    dynamic_shapes: [[{dim: batch}, null]]", "net.yaml:8:", "dynamic_shapes", "max"
    ),
    added(
        "a range for too many dimensions",
        "    dynamic_shapes: [[{dim: batch, max: 4}, null, null]]",
        "net.yaml:8:",
        "dynamic_shapes",
    ),
    added(
        "an example outside of its range",
        "    dynamic_shapes: [[{dim: batch, min: 4, max: 8}, null]]",
        "net.yaml:8:",
        "dynamic_shapes",
        "4",
    ),
    added(
        "dynamic_shapes as torch.export takes them",
        "    dynamic_shapes: {x: {0: {dim: batch, max: 4}}}",
        "net.yaml:8:",
        "dynamic_shapes",
        "[[null, {dim: seq, min: 2, max: 128}], null]",
    ),
    Mistake("an empty manifest", ("net.yaml", "schema"), {"net.yaml": b""}, ("validate", "net.yaml")),
    Mistake(
        "a list as a manifest", ("net.yaml:1:1", "schema"), {"net.yaml": b"- name: net\n"}, ("validate", "net.yaml")
    ),
    Mistake("a picture as a manifest", ("net.yaml",), {"net.yaml": b"\x89PNG\r\n\x1a\n\x00"}, ("validate", "net.yaml")),
)

IN_COMMANDS = (
    line("a misspelled verb", "biuld net.yaml", "biuld", "`build`"),
    line("a manifest without a verb", "net.yaml", "`etbuild build net.yaml`"),
    line("no manifest", "build", "MANIFEST"),
    line("a manifest that is not there", "build nte.yaml", "nte.yaml", "did you mean `net.yaml`"),
    line("a misspelled option", "build net.yaml --ouput out", "--ouput", "--out"),
    line("an option before the verb", "--out out build net.yaml", "`--out`", "follow the verb"),
    line("a variant that is not there", "build net.yaml --variant fast", "fast"),
    line("a source instead of a manifest", "build model.py", "model.py", "model.py:CALLABLE"),
    line("a function that is not there", "build model.py:craete --input 2,8 --no-cache", "craete", "create"),
    line("an input in words", "build model.py:create --input batch,8", "--input batch,8"),
    line("an input with an unknown dtype", "build model.py:create --input float[2,8]", "float", "float32"),
    line("an unknown quantization", "build model.py:create --input 2,8 --quantize int7", "int7", "int8"),
    line("an unknown backend", "build model.py:create --input 2,8 --backend xnnpak", "xnnpak", "xnnpack"),
    line("an input with a letter for a size", "build model.py:create --input N,8", "--input N,8", "dynamic_shapes"),
    line("a model of a package", "build torchvision.models:resnet18 --input 2,8", "models:resnet18", "source"),
    line("a check of a model of a package", "validate model:create", "`etbuild build model.py:create`"),
    line("a manifest that is saved as a directory", "build model.py:create --input 2,8 --save .", "is a directory"),
    Mistake(
        "a checkpoint for a manifest without one",
        ("net.yaml:3:", "--weights", "write `weights: FILE` under `model`"),
        {"net.yaml": WITHOUT_WEIGHTS.encode()},
        ("build", "net.yaml", "--weights", "net.safetensors"),
    ),
    line(
        "a manifest that is saved over another one",
        "build model.py:create --input 2,8 --save net.yaml",
        "net.yaml exists",
        "remove it",
    ),
    line("a pattern that finds nothing", "build net.yaml --weights step_*.pt", "--weights step_*.pt"),
    line("a time that is none", "build net.yaml --timeout -1", "--timeout", "-1"),
    line("a program as a manifest", "build out/net.pte", "out/net.pte", "inspect", needs_program=True),
    line("a manifest as a program", "inspect net.yaml", "net.yaml", "etbuild build"),
    line("a method that is not there", "run out/net.pte froward", "froward", "forward", needs_program=True),
    line("an input in place of a method", "run out/net.pte [[1,2,3]]", "[2, 8]", needs_program=True),
    line("an input that is no JSON", "run out/net.pte forward [[1,", "[[1,", needs_program=True),
    line("an input of another shape", "run out/net.pte forward [[1,2,3]]", "[2, 8]", needs_program=True),
    line("too many inputs", "run out/net.pte forward [1] [2]", "takes 1 input,", "inspect", needs_program=True),
    line("a test of a program", "test out/net.pte", "out/net.pte", "--program", needs_program=True),
    line("a page against nothing", "build net.yaml --against out/net.pte", "--against", "--html"),
    line("a folder that is none", "init --huggingface nowhere", "nowhere", "hub:OWNER/NAME"),
    line("a comparison with nothing", "diff out/net.pte", "AFTER", needs_program=True),
    line("a cache that is a file", "build net.yaml -o out --cache-dir model.py", "model.py", "--cache-dir"),
    line("an output that is a file", "build net.yaml -o model.py", "model.py", "directory", code=1),
)

IN_MODELS = (
    model("a syntax error", "return Net()", "return Net(", "`model.py`", "line 16", "never closed", code=2),
    model(
        "a missing package",
        "import torch\n",
        "import torch\nimport einops_of_mine\n",
        "model.py:2",
        "pip install einops_of_mine",
    ),
    model(
        "a factory with arguments",
        "def create():",
        "def create(hidden):",
        "model.factory",
        "hidden",
        "`model.kwargs`: {hidden: ...}",
    ),
    model("a factory that returns the class", "return Net()", "return Net", "model.factory", "call it", "`Net`"),
    model("a factory that returns nothing", "return Net()", "Net()", "model.factory", "lack `return`"),
    model(
        "a factory that returns weights",
        "return Net()",
        "return Net().state_dict()",
        "model.factory",
        "return the module",
    ),
    model("a factory of another name", "def create", "def make", "model.factory", "no `create`", "make", code=2),
    model("no super().__init__()", "        super().__init__()\n", "", "model.py:7", "call `super().__init__()`"),
    model(
        "a branch on data",
        "return self.linear(x).relu()",
        "return x if x.sum() > 0 else self.linear(x)",
        "model.py:11",
        "torch.where",
    ),
    model("a size from data", "return self.linear(x).relu()", "return x[: int(x.sum())]", "model.py:11", "torch.where"),
    model(
        "numpy inside",
        "return self.linear(x).relu()",
        "return self.linear(x).detach().numpy()",
        "model.py:11",
        "without `.numpy()`",
        code=1,
    ),
    model("an attribute that is not there", "self.linear(x)", "self.linaer(x)", "model.py:11", "set `self.linaer`"),
    model(
        "a shape that does not fit",
        "nn.Linear(8, 4)",
        "nn.Linear(9, 4)",
        "model.py:11",
        "(2x8 and 9x4)",
        "change `shape`",
    ),
    model("a module for CUDA", "return Net()", "return Net().cuda()", "model.py:16", "leave out `.cuda()`"),
    model(
        "a tensor for CUDA",
        "return self.linear(x).relu()",
        'return self.linear(x.to("cuda"))',
        "model.py:11",
        "leave out",
        code=1,
    ),
    model(
        "forward with another argument",
        "def forward(self, x):",
        "def forward(self, x, mask):",
        "methods.forward",
        "(x, mask)",
        code=2,
    ),
    model(
        "an exception of the model",
        "return self.linear(x).relu()",
        'raise ValueError("no such task")',
        "model.py:11",
        "no such task",
    ),
    model(
        "a text as a result",
        "return self.linear(x).relu()",
        'return self.linear(x), "label"',
        "methods.forward",
        "return tensors",
    ),
    model(
        "sys.exit in the factory",
        "return Net()",
        "import sys; sys.exit(3)",
        "model.py:16",
        "SystemExit: 3",
        "leave it out",
    ),
    model(
        "a file that is not declared", "return Net()", 'open("../secret.txt"); return Net()', "model.py:16", "--data"
    ),
    model(
        "a module in half precision",
        "return Net()",
        "return Net().half()",
        "model.py:11",
        "float16",
        "convert the module",
    ),
    model("another Python file", "import torch\n", "import torch\nimport layers\n", "model.py:2", "a source of yours"),
    model(
        "state in a list",
        "return self.linear(x).relu()",
        "self.seen.append(x.sum().item()); return self.linear(x)",
        "model.py:11",
        "set `self.seen`",
    ),
)

IN_WEIGHTS = (
    Mistake(
        "weights that are not there",
        ("net.yaml:3:", "model.weights", "missing.safetensors"),
        {"net.yaml": MANIFEST.replace("net.safetensors", "missing.safetensors").encode()},
    ),
    weights(
        "a prefix of DataParallel",
        save({f"module.{key}": value for key, value in STATE.items()}),
        "model.weights",
        "module.",
    ),
    weights(
        "a shape that changed",
        save({**STATE, "linear.weight": torch.ones(4, 9)}),
        "linear.weight",
        "float32[4, 8]",
        "float32[4, 9]",
    ),
    weights(
        "a misspelled weight",
        save({"linear.wieght": STATE["linear.weight"], "linear.bias": STATE["linear.bias"]}),
        "linear.wieght",
        "linear.weight",
    ),
    weights(
        "weights in half precision",
        save({key: value.half() for key, value in STATE.items()}),
        "float16",
        "dtype: float32",
    ),
    weights("an empty file", b"", "net.safetensors", "empty"),
    weights(
        "a pointer of Git LFS",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "net.safetensors",
        "git lfs",
    ),
    weights("a page of a website", b"<!DOCTYPE html><html>Not found</html>", "net.safetensors", "HTML"),
    weights("half of a file", save(STATE)[:100], "net.safetensors", "damaged"),
    weights("a pickled model", pickled(torch.nn.Linear(8, 4)), "net.pt", "state_dict()", file="net.pt"),
    weights("a pickle that runs code", pickle.dumps(Evil()), "net.pt", "safetensors", file="net.pt"),
    weights("an optimizer", pickled({"state": {}, "param_groups": [{"lr": 0.1}]}), "net.pt", file="net.pt"),
    weights("a zip of anything", b"PK\x05\x06" + bytes(18), "net.pt", file="net.pt"),
    weights(
        "an index without shards",
        json.dumps({"weight_map": {"linear.weight": "a.safetensors", "linear.bias": "a.safetensors"}}).encode(),
        "a.safetensors",
        file="net.safetensors.index.json",
    ),
    weights("weights of another model", save({"conv.weight": torch.ones(3)}), "conv.weight", "linear.weight"),
    weights(
        "weights that are not numbers",
        save({**STATE, "linear.bias": torch.full((4,), torch.nan)}),
        "linear.bias",
        "NaN",
        files={"net.yaml": f"{MANIFEST}checks: {{finite: true}}\n".encode()},
        code=3,
    ),
)

IN_INPUTS = (
    inputs(
        "a channel too many",
        "[{shape: [2, 9]}]",
        "methods.forward",
        "(2x9 and 8x4)",
        "model.py:11",
        "change `shape`",
        code=1,
    ),
    inputs("two inputs for one", "[{shape: [2, 8]}, {shape: [2, 8]}]", "methods.forward.example_inputs", "x"),
    inputs("integers for floats", "[{shape: [2, 8], dtype: int64}]", "methods.forward", "dtype", "model.py:11", code=1),
    integers("floats for indices", "self.linear.bias[x]", "dtype: int64"),
    integers("floats for rows", "nn.functional.embedding(x, self.linear.weight)", "dtype: int64"),
    integers("floats for a mask", "x.masked_fill(x, 0)", "dtype: bool"),
    Mistake(
        "a factory of an installed package",
        ("net.yaml:3:", "torch.nn", "`torch` is an installed package", "`create`"),
        {"net.yaml": WITHOUT_WEIGHTS.replace("model:create", "torch.nn:Identity").encode()},
        built=True,
    ),
    Mistake(
        "a factory of the script that runs",
        ("net.yaml:3:", "`__main__` is not among the declared sources"),
        {"net.yaml": WITHOUT_WEIGHTS.replace("model:create", "__main__:create").encode()},
        built=True,
    ),
    inputs("no input at all", "[]", "methods.forward", "x"),
    inputs("a file that is not there", "[{file: batch.safetensors, key: x}]", "batch.safetensors"),
    inputs("a factory that is not there", '[{factory: "model:inputs"}]', "`model` has no `inputs`", "create"),
    inputs(
        "a dictionary for a tensor",
        "[{dict: {x: {shape: [2, 8]}}}]",
        "methods.forward",
        "model.py:11",
        "`shape`",
        code=1,
    ),
    inputs("a number for a tensor", "[{value: 3}]", "methods.forward", "model.py:11", "`shape`", code=1),
    inputs(
        "a batch of 32 TB", "[{shape: [1000000000000, 8]}]", "methods.forward", "memory", "a smaller `shape`", code=1
    ),
    Mistake(
        "dynamic sizes that the model fixes",
        ("net.yaml", "dynamic_shapes", "model.py:11"),
        {
            "net.yaml": f"{WITHOUT_WEIGHTS}    dynamic_shapes: [[{{dim: batch, max: 4}}, null]]\n".encode(),
            "model.py": MODEL.replace("self.linear(x).relu()", "self.linear(x).reshape(2, 4)").encode(),
        },
        built=True,
        code=1,
    ),
)

MISTAKES = (*IN_MANIFEST, *IN_COMMANDS, *IN_MODELS, *IN_WEIGHTS, *IN_INPUTS)
