"""Tiny programs to build many times."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import commands

MODEL = """\
import torch

def create(width):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU())
"""
MANIFEST = """\
schema: executorch-model/v1
name: net{width}
model: {{factory: "model:create", kwargs: {{width: {width}}}}}
defaults: {{partitioners: [xnnpack]}}
methods: {{forward: {{example_inputs: [{{shape: [1, 8]}}]}}}}
named_data: {{weights: {{parameters: ["*"]}}}}
"""


def write_project(root: Path, width: int) -> Path:
    """Writes a manifest and its model."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "model.py").write_text(MODEL)
    manifest = root / f"net{width}.yaml"
    manifest.write_text(MANIFEST.format(width=width))
    return manifest


def command(manifest: Path, out: Path, *options: str) -> list[str]:
    """Returns the command that builds a manifest."""
    return commands.command("build", manifest, "-o", out, "--json", *options)


def build(manifest: Path, out: Path, *options: str) -> dict[str, bytes]:
    """Builds a manifest, which must succeed, and returns the artifacts."""
    commands.build(manifest, out, *options)
    return artifacts(out)


def artifacts(out: Path) -> dict[str, bytes]:
    """Returns the published files."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} if out.is_dir() else {}
