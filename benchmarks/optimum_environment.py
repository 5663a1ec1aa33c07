"""The environment of optimum-executorch, which needs another release of transformers than the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_DIRECTORY = ROOT / ".cache/bench/optimum"
_REQUIREMENTS = ROOT / "benchmarks/llm/requirements-optimum.txt"
CUSTOM = ("--use_custom_sdpa", "--use_custom_kv_cache")
"""The options for ExecuTorch's own attention and cache."""


def version() -> str:
    """The release of optimum-executorch in it."""
    lines = _REQUIREMENTS.read_text("utf-8").split()
    return next(line for line in lines if line.startswith("optimum-executorch==")).partition("==")[2]


def command() -> Path:
    """The path of `optimum-cli`. The first call makes the environment."""
    if not (_DIRECTORY / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", _DIRECTORY], check=True)
        subprocess.run([_DIRECTORY / "bin/pip", "install", "--quiet", "--requirement", _REQUIREMENTS], check=True)
        (_DIRECTORY / "ready").touch()
    return _DIRECTORY / "bin/optimum-cli"
