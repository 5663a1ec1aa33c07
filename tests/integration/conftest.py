"""Small projects made by tests, built with the real driver in this process (torch is imported once)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from tests.helpers.manifests import net

MANIFEST = """\
schema: executorch-model/v1
name: net
model:
  factory: "model:create"
methods:
  forward:
    example_inputs:
      - {shape: [2, 8]}
defaults:
  partitioners: [xnnpack]
"""

MODEL = net("self.linear = torch.nn.Linear(8, 4)", forward="return self.linear(x).relu()")


@dataclass
class Outcome:
    """The output and the files of a command."""

    code: int
    out: str
    err: str
    directory: Path

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def json(self, name: str) -> Any:
        return json.loads(self.read(name))

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.is_dir() else []


Build = Callable[..., Outcome]


@pytest.fixture
def build(tmp_path: Path, capfd: pytest.CaptureFixture[str], patterns_traced_once: None) -> Build:
    """Writes a manifest and sources to a new directory and builds it: `build(MANIFEST, model=MODEL)`."""
    count = 0

    def run(
        manifest: str = MANIFEST, *arguments: str, files: dict[str, bytes] | None = None, **sources: str
    ) -> Outcome:
        nonlocal count
        count += 1
        root = tmp_path / f"project{count}"
        root.mkdir()
        (root / "model.yaml").write_text(textwrap.dedent(manifest), "utf-8")
        for name, text in {"model": MODEL, **sources}.items():
            path = root / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), "utf-8")
        for name, data in (files or {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        capfd.readouterr()
        cache = () if "--cache-dir" in arguments else ("--no-cache",)
        code = main.main(["build", str(root / "model.yaml"), "-o", str(root / "out"), *cache, *arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err.replace(f"{root}/", ""), root / "out")

    return run
