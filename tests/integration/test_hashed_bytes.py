"""How many bytes a build hashes, in all of its processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(2048, 1024), torch.nn.Linear(1024, 2048)

    def forward(self, x):
        return self.two(self.one(x).relu())

    def first(self, x):
        return self.one(x)

create = Net
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {{factory: "model:create", weights: {weights}}}
methods:
  forward: {{example_inputs: [{{shape: [2, 2048]}}]}}
  first: {{example_inputs: [{{shape: [2, 2048]}}]}}
defaults: {{partitioners: {partitioners}}}
"""

IN_MEMORY = {
    "etplugins.accelerate.blob_files",
    "etplugins.templates.binding",
    "etplugins.templates.method_archive",
    "etbuild.lower.weight_storage",
    "etbuild.model.tensor_digests",
    "etbuild.releases",
}
"""The modules that hash tensors, and what backends make of them. No digest of a file gives these digests: they begin
with the dtype and the shape, or leave out the rest of the file."""


class Counted:
    """A sha256 object that counts, for each module, the bytes that it gets. Forked processes write to the same file."""

    new = hashlib.sha256

    def __init__(self, log: int, data: Any = b"") -> None:
        self.log, self.state = log, Counted.new()
        self._count(data, sys._getframe(2).f_globals["__name__"])

    def update(self, data: Any) -> None:
        self._count(data, sys._getframe(1).f_globals["__name__"])

    def _count(self, data: Any, module: str) -> None:
        self.state.update(data)
        os.write(self.log, json.dumps([module, memoryview(data).nbytes]).encode() + b"\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@pytest.mark.parametrize(
    ("weights", "save", "partitioners"),
    [("w.safetensors", save_file, "[xnnpack]"), ("w.pt", torch.save, "[]")],
    ids=["safetensors", "torch"],
)
def test_a_cold_build_hashes_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, save: Callable[..., None], partitioners: str
) -> None:
    """The bytes of files that are hashed are at most 1.1 times those of the inputs and the outputs."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "model.yaml").write_text(MANIFEST.format(weights=weights, partitioners=partitioners))
    shapes = {"one.weight": (1024, 2048), "one.bias": (1024,), "two.weight": (2048, 1024), "two.bias": (2048,)}
    save({name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / weights)
    time.sleep(2.1)  # a file that has just changed may change again without a sign: it would be read twice
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "sha256", lambda data=b"", **_: Counted(log, data))
        where = ["--cache-dir", str(tmp_path / "cache"), "-o", str(tmp_path / "out")]
        assert main.main(["build", str(tmp_path / "model.yaml"), *where]) == 0
    os.close(log)

    hashed: Counter[str] = Counter()
    for line in (tmp_path / "log").read_text().splitlines():
        module, size = json.loads(line)
        hashed[module] += size
    others = {*IN_MEMORY, "etbuild.key.distributions"}  # the latter reads the lists of installed files
    of_files = {name: size for name, size in hashed.items() if name.startswith("etbuild.") and name not in others}
    inputs = sum((tmp_path / name).stat().st_size for name in ("model.py", "model.yaml", weights))
    outputs = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert inputs + outputs <= sum(of_files.values()) <= 1.1 * (inputs + outputs), hashed
    of_weights = sum(4 * math.prod(shape) for shape in shapes.values())
    assert hashed["etplugins.templates.binding"] >= of_weights
    for module in IN_MEMORY:  # once for both methods
        assert hashed[module] <= 1.01 * of_weights, hashed
    assert hashed["etbuild.releases"], "children are not counted: they hash recipes"
