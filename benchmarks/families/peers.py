"""What other exporters make of a folder with a language model: the tokens that their programs say.

Each is called as its documentation says, with XNNPACK and without quantization.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.families import families

ROOT = Path(__file__).resolve().parents[2]
OPTIMUM = ROOT / ".cache/bench/optimum"  # benchmarks/llm/run.py has the same
_REQUIREMENTS = ROOT / "benchmarks/llm/requirements-optimum.txt"


def version() -> str:
    """The release of optimum-executorch that its environment has."""
    lines = _REQUIREMENTS.read_text("utf-8").split()
    return next(line for line in lines if line.startswith("optimum-executorch")).partition("==")[2]


def install_optimum() -> None:
    """Makes the environment of optimum-executorch, which needs another release of transformers."""
    if not (OPTIMUM / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", OPTIMUM], check=True)
        subprocess.run([OPTIMUM / "bin/pip", "install", "--quiet", "--requirement", _REQUIREMENTS], check=True)
        (OPTIMUM / "ready").touch()


def optimum_program(folder: Path, out: Path, seconds: float) -> Path:
    """The program that `optimum-cli export executorch` makes, with the custom attention and cache that it recommends.

    Raises:
        RuntimeError: optimum has failed. The message is its last line.
        subprocess.TimeoutExpired: It took longer than `seconds`.
    """
    arguments: list[str | Path] = [
        "--model",
        folder,
        "--task",
        "text-generation",
        "--recipe",
        "xnnpack",
        "--dtype",
        "float32",
    ]
    arguments += ["--use_custom_sdpa", "--use_custom_kv_cache", "--max_seq_len", str(families.POSITIONS)]
    command: list[str | Path] = [OPTIMUM / "bin/optimum-cli", "export", "executorch", *arguments, "--output_dir", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeError(lines[-1].strip())
    return out / "model.pte"


def said_by_transformers_exporter(folder: str, cls: str, ids: list[int], count: int) -> list[int]:
    """The tokens after a prompt, by the programs of transformers' `ExecutorchExporter` in `generate`.

    It makes a program of the whole prompt and one of a single token, which take the cache as inputs.
    """
    from transformers.exporters import ExecutorchConfig, ExecutorchExporter

    model = getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32).eval()
    limits = {"cache_implementation": "static", "max_cache_len": families.POSITIONS}
    settings = transformers.GenerationConfig(do_sample=False, pad_token_id=0, **limits)
    prompt = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    config = ExecutorchConfig(backend="xnnpack")
    exported = ExecutorchExporter().export_for_generation(model, prompt, config, generation_config=settings)

    @functools.wraps(model.forward)
    def forward(**given: Any) -> Any:
        name = "prefill" if given["input_ids"].shape[1] == len(ids) else "decode"
        taken = exported.components[name].metadata.kwargs
        return exported.runners[name](**{key: value for key, value in given.items() if key in taken})

    model.forward = forward
    settings.max_new_tokens = count
    said: list[int] = model.generate(**prompt, generation_config=settings)[0, len(ids) :].tolist()
    return said
