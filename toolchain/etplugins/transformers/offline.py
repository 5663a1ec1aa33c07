"""Imports transformers so that it never asks a hub."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def transformers() -> ModuleType:
    """Returns transformers. It asks no hub in this process if this is its first import here.

    Raises:
        ImportError: It, or a package that it needs, is not installed.
    """
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(_OFFLINE)  # read by this import, and by no later one
    try:
        importlib.import_module("huggingface_hub.constants")
        return importlib.import_module("transformers")
    finally:  # what the caller's own code starts later has the caller's environment
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
