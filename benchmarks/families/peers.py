"""What other exporters make of a folder with a language model, with XNNPACK and without quantization."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import optimum_environment
from benchmarks.families import families

CUSTOM = ("--use_custom_sdpa", "--use_custom_kv_cache")
"""The options of optimum-executorch for ExecuTorch's own attention and cache."""


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


def _prompt(ids: list[int]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}


def _settings(**more: Any) -> Any:
    limits = {"cache_implementation": "static", "max_cache_len": families.POSITIONS}
    return transformers.GenerationConfig(do_sample=False, pad_token_id=0, **limits, **more)


def export_with_transformers(folder: str, cls: str, ids: list[int], out: str) -> None:
    """Writes the programs of transformers' `ExecutorchExporter`: one for a whole prompt and one for a single token.
    They take the cache as inputs."""
    from transformers.exporters import ExecutorchConfig, ExecutorchExporter

    model = getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32).eval()
    config = ExecutorchConfig(backend="xnnpack")
    exporter = ExecutorchExporter()
    exporter.export_for_generation(model, _prompt(ids), config, generation_config=_settings()).save_pretrained(out)


def said_by_transformers(folder: str, cls: str, programs: str, ids: list[int], count: int) -> list[int]:
    """The tokens after a prompt, by `generate` of transformers, which calls the programs in place of the model.

    Args:
        folder: The folder with the model.
        cls: The model's class.
        programs: What `export_with_transformers` wrote for the same prompt.
        ids: The tokens of the prompt.
        count: The number of tokens after it.
    """
    from transformers.exporters import ExportedModel

    model = getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32).eval()
    exported = ExportedModel.from_pretrained(programs)

    @functools.wraps(model.forward)
    def forward(**given: Any) -> Any:
        name = "prefill" if given["input_ids"].shape[1] == len(ids) else "decode"
        taken = exported.components[name].metadata.kwargs
        return exported.runners[name](**{key: value for key, value in given.items() if key in taken})

    model.forward = forward
    said: list[int] = model.generate(**_prompt(ids), generation_config=_settings(max_new_tokens=count))[0].tolist()
    return said[len(ids) :]
