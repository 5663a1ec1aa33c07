"""Programs of any size: a manifest, its model and its weights, for `etbuild` and for the plain script."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
_WRITE_WEIGHTS = """\
import json, sys
import torch
from safetensors.torch import save_file
sys.path.insert(0, sys.argv[1])
from model import create
torch.manual_seed(0)
save_file(create(**json.loads(sys.argv[2])).state_dict(), sys.argv[3])
"""


@dataclass(frozen=True)
class Size:
    """The size of a transformer, and the file of this folder that has its module."""

    layers: int = 12
    methods: int = 2
    dim: int = 128
    model: str = "model.py"  # or `rotary_model.py`

    def entries(self) -> dict[str, tuple[str, int]]:
        """The entry and the length of the text of each method: `logits` and `embed` in turn, with longer texts for each
        pair."""
        return {f"m{i}": (("logits", "embed")[i % 2], 16 * (1 + i // 2)) for i in range(self.methods)}


def transformer(directory: Path, size: Size) -> Path:
    """Writes a transformer of this folder into a new directory, and returns its manifest."""
    methods = {
        name: {"entry": entry, "example_inputs": [{"shape": [1, length], "dtype": "int64"}]}
        for name, (entry, length) in size.entries().items()
    }
    return write(directory, HERE / size.model, {"layers": size.layers, "dim": size.dim}, methods)


def perceptron(directory: Path) -> Path:
    """Writes the smallest example into a new directory, and returns its manifest."""
    methods = {"forward": {"entry": "forward", "example_inputs": [{"shape": [1, 16], "dtype": "float32"}]}}
    return write(directory, EXAMPLES / "mlp/model.py", {"inputs": 16, "hidden": 32, "outputs": 4}, methods)


def chain(directory: Path, operators: int) -> Path:
    """Writes a method without weights into a new directory, and returns its manifest."""
    methods = {"forward": {"example_inputs": [{"shape": [1, 16], "dtype": "float32"}]}}
    return write(directory, HERE.parent / "growth/chain.py", {"operators": operators}, methods)


def write(directory: Path, model: Path, kwargs: dict[str, Any], methods: dict[str, Any]) -> Path:
    """Writes a model with random weights into a new directory, and returns its manifest.

    Args:
        directory: The directory.
        model: A file with a function `create`, which makes the module.
        kwargs: The arguments of `create`.
        methods: The methods of the manifest.
    """
    directory.mkdir(parents=True)
    shutil.copyfile(model, directory / "model.py")  # the same name for all factories
    # In another process, since memory of this process would count for its children.
    arguments = [str(directory), json.dumps(kwargs), str(directory / "model.safetensors")]
    subprocess.run([sys.executable, "-c", _WRITE_WEIGHTS, *arguments], check=True)
    manifest: dict[str, Any] = {
        "schema": "executorch-model/v1",
        "name": "program",
        "model": {"factory": "model:create", "kwargs": kwargs, "weights": "model.safetensors"},
        "defaults": {"partitioners": ["xnnpack"]},
        "methods": methods,
        "named_data": {"weights": {"parameters": ["*"]}},
    }
    if model.stem == "chain":  # it has no weights
        del manifest["named_data"], manifest["model"]["weights"]
    path = directory / "model.yaml"  # JSON is YAML
    path.write_text(json.dumps(manifest, indent=2), "utf-8")
    return path


def edit_one_method(manifest: Path) -> None:
    """Makes the last method read a longer text."""
    content = json.loads(manifest.read_text("utf-8"))
    content["methods"][max(content["methods"])]["example_inputs"][0]["shape"][1] += 8
    manifest.write_text(json.dumps(content, indent=2), "utf-8")
