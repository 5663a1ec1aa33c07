"""The builds of one language model that the benchmark compares: each takes a checkpoint and an output folder, and
returns the program, or a folder of programs, with what its commands took."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import optimum_environment
from benchmarks.measure import Usage, command, usage

HERE = Path(__file__).resolve().parent
LENGTH = 512
"""The tokens that a cache holds."""
PROMPT = 128
"""The tokens of one call, where a build asks for their number."""
Build = Callable[[Path, Path], tuple[Path, list[Usage]]]


def ours(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Builds the manifest of this folder."""
    arguments = ["--root", checkpoint, "--no-cache", "-o", out]
    return out / "model.pte", [usage(sys.executable, "-m", "etbuild", "build", HERE / "model.yaml", *arguments)]


def _optimum(checkpoint: Path, out: Path, *more: object) -> tuple[Path, list[Usage]]:
    arguments = ["--model", checkpoint, "--task", "text-generation", "--recipe", "xnnpack", "--dtype", "float32"]
    arguments += ["--max_seq_len", LENGTH, "--output_dir", out, *more]
    return out / "model.pte", [usage(optimum_environment.command(), "export", "executorch", *arguments, PYTHONPATH="")]


def optimum(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Runs optimum-executorch."""
    quantized = ["--qlinear", "8da4w", "--qlinear_group_size", 32, "--qembedding", "8w"]
    return _optimum(checkpoint, out, *optimum_environment.CUSTOM, *quantized)


def export_llm(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Converts the checkpoint, and runs ExecuTorch's own exporter."""
    out.mkdir()
    convert = usage(
        sys.executable, "-m", "executorch.examples.models.qwen3.convert_weights", checkpoint, out / "checkpoint.pth"
    )
    keys = {
        "+base.model_class": "qwen3_0_6b",  # the number of layers and their widths come from `params`
        "+base.checkpoint": out / "checkpoint.pth",
        "+base.params": HERE / "qwen3/params.json",
        "+export.output_dir": out,
        "+export.output_name": "model",
        "hydra.run.dir": out,
        "hydra.output_subdir": "null",
    }
    exporter = [sys.executable, "-m", "executorch.extension.llm.export.export_llm"]
    shown = [f"{key}={value}" for key, value in keys.items()]
    return out / "model.pte", [convert, usage(*exporter, "--config", HERE / "export_llm.yaml", *shown)]


def plain(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Runs the plain script."""
    out.mkdir()
    program = out / "model.pte"
    return program, [usage(sys.executable, HERE / "plain.py", checkpoint, LENGTH, program)]


def transformers(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Runs transformers' exporter, which writes float32. It cannot export linear layers of 4 bits."""
    return out, [usage(sys.executable, "-m", "benchmarks.transformers_exporter", checkpoint, PROMPT, LENGTH, out)]


def ours_float32(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Builds the manifest that `etbuild init` writes."""
    written = ["--huggingface", checkpoint, "--name", "model", "-o", checkpoint, "--no-check"]
    command(sys.executable, "-m", "etbuild", "init", *written)
    manifest = checkpoint / "model.yaml"
    longest = re.sub(r"max_length: \d+", f"max_length: {LENGTH}", manifest.read_text("utf-8"))
    manifest.write_text(longest, "utf-8")
    return out / "model.pte", [usage(sys.executable, "-m", "etbuild", "build", manifest, "--no-cache", "-o", out)]


def optimum_float32(checkpoint: Path, out: Path) -> tuple[Path, list[Usage]]:
    """Runs optimum-executorch, with ExecuTorch's attention and cache if it can."""
    try:
        return _optimum(checkpoint, out, *optimum_environment.CUSTOM)
    except SystemExit:
        return _optimum(checkpoint, out)


BUILDS: dict[str, Build] = {build.__name__: build for build in (ours, optimum, export_llm, plain, transformers)}
FLOAT32: dict[str, Build] = {"ours": ours_float32, "optimum": optimum_float32, "transformers": transformers}
