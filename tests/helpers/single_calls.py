"""Small models of the tasks that have all of their input in one call, and programs of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers import commands
from tests.helpers.once import made_once

transformers = pytest.importorskip("transformers")


def model(auto: str, config: dict[str, Any]) -> Any:
    """A model of transformers whose outputs are far from zero and from each other.

    Args:
        auto: The Auto class, or the class itself.
        config: The configuration, with its `model_type`.
    """
    made = _made(getattr(transformers, auto), config).eval()
    numbers = torch.Generator().manual_seed(5)
    weights = (each for each in made.parameters() if each.requires_grad)  # others are computed
    for parameter in (each for each in weights if each.dim() > 1):
        parameter.data = torch.randn(parameter.shape, generator=numbers) / 3
    return made


def _made(cls: Any, config: dict[str, Any]) -> Any:
    if hasattr(cls, "_from_config"):
        return cls(cls.config_class(**{key: value for key, value in config.items() if key != "model_type"}))
    return cls.from_config(transformers.AutoConfig.for_model(**config))


def folder_of(made: Any, folder: Path, huggingface: dict[str, Any], **keys: Any) -> Path:
    """Writes the manifest and the weights of a model, and returns the path of the manifest.

    Args:
        made: The model of transformers.
        folder: Where they are written.
        huggingface: `model.huggingface`.
        keys: Other keys of the manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {key: value.clone().contiguous() for key, value in made.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    manifest = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"huggingface": huggingface, "weights": "model.safetensors"},
        "defaults": {"partitioners": ["xnnpack"]},
        **keys,
    }
    (folder / "model.yaml").write_text(json.dumps(manifest))
    return folder / "model.yaml"


def program(directory: Path, make: Callable[[Path], Path]) -> Path:
    """Builds a program once for all processes of a test run, and returns its path.

    Args:
        directory: The directory of the program.
        make: Writes the manifest to a folder, and returns its path.
    """

    def build(partial: Path) -> None:
        commands.build(make(partial), partial / "out")

    return made_once(directory, build) / "out/net.pte"
