"""What other exporters make of a folder with a language model, with XNNPACK and without quantization."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import optimum_environment, transformers_exporter
from benchmarks.families import families


def optimum_program(folder: Path, options: tuple[str, ...], out: Path, seconds: float) -> Path:
    """The program that optimum-executorch makes.

    Raises:
        RuntimeError: optimum has failed. The message is its last line.
        subprocess.TimeoutExpired: It took longer than `seconds`.
    """
    command = "export executorch --task text-generation --recipe xnnpack --dtype float32"
    more = [*options, "--max_seq_len", str(families.POSITIONS), "--model", str(folder), "--output_dir", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    called = [str(optimum_environment.command()), *command.split(), *more]
    done = subprocess.run(called, capture_output=True, text=True, check=False, timeout=seconds, env=environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeError(lines[-1].strip())
    return out / "model.pte"


def export_with_transformers(folder: str, cls: str, ids: list[int], out: str) -> None:
    """Writes the programs of transformers' exporter for a prompt of this length."""
    transformers_exporter.export(_model(folder, cls), ids, families.POSITIONS, out)


def said_by_transformers(folder: str, cls: str, programs: str, ids: list[int], count: int) -> list[int]:
    """The tokens after a prompt, by the programs of transformers' exporter.

    Args:
        folder: The folder with the model.
        cls: The model's class.
        programs: What `export_with_transformers` wrote for the same prompt.
        ids: The tokens of the prompt.
        count: The number of tokens after it.
    """
    made = transformers_exporter.Programs(programs)
    return transformers_exporter.generate(_model(folder, cls), made, ids, count, families.POSITIONS)


def _model(folder: str, cls: str) -> Any:
    return getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32).eval()
