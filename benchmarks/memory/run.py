#!/usr/bin/env python3
"""Measures the peak memory of builds of packed checkpoints, above that of the same build of a tiny model.

    python -m benchmarks.memory.run [--formats gptq awq gguf] [--layers 8] [--hidden 2048] [--write benchmarks/results]

Each checkpoint is a Llama with random integers of 4 bits, in groups of 32 (AWQ: 64), and the program keeps them
(`quantize: {torchao: [{config: packed}]}`). The build has no cache. Memory is the proportional set size of all its
processes, ten times a second, in MB (10**6 bytes): what processes share counts once. The baseline is the peak of the
same build with weights of less than 1 MB: what is imported, and what a build of any size takes. `above` is the peak of
the largest step minus the baseline, and `above / file` compares that with the file. `layer` is the largest matrix in
float32.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks import frame
from benchmarks.measure import megabytes
from tests.helpers.worker_client import descendants

Config = dict[str, Any]
TINY = {"layers": 1, "hidden": 128}
_STAGE = re.compile(r"\x1b\[K  (?:\x1b\[\d+m)?(.+?) \.\.\.")
_SECONDS = 0.1


def config_of(layers: int, hidden: int) -> Config:
    """The configuration of a Llama with the proportions of the one with 1 billion parameters, and few words."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 96,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "dtype": "float16",
    }


def shapes_of(config: Config) -> dict[str, list[int]]:
    """The shapes of the weights by name."""
    import transformers

    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    return {name: list(tensor.shape) for name, tensor in made.state_dict().items()}


def _integers(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def _scales(groups: int, rows: int, columns: int) -> torch.Tensor:
    """Positive scales with which integers of 4 bits become weights of a usual size."""
    return ((0.5 + torch.rand(groups, rows)) / (4 * columns**0.5)).half()


def _words(number: int) -> int:
    """The word of 32 bits with this number of 4 bits eight times, with a sign."""
    return int(np.uint32(number * 0x11111111).view(np.int32))


def gptq(rows: int, columns: int) -> dict[str, torch.Tensor]:
    """A layer of GPTQ in groups of 32. Its first version stores zero points less one."""
    groups = columns // 32
    return {
        ".qweight": _integers(columns // 8, rows),
        ".qzeros": torch.full((groups, rows // 8), _words(7), dtype=torch.int32),
        ".scales": _scales(groups, rows, columns),
        ".g_idx": torch.arange(columns, dtype=torch.int32) // 32,
    }


def awq(rows: int, columns: int) -> dict[str, torch.Tensor]:
    """A layer of AWQ in groups of 64, with the zero points of symmetric integers."""
    groups = columns // 64
    return {
        ".qweight": _integers(columns, rows // 8),
        ".qzeros": torch.full((groups, rows // 8), _words(8), dtype=torch.int32),
        ".scales": _scales(groups, rows, columns),
    }


def safetensors(layer: Callable[[int, int], dict[str, torch.Tensor]], quantization: Config) -> Any:
    """Returns a function that writes the folder of a packed model."""

    def write(folder: Path, config: Config) -> Path:
        tensors = {}
        for name, shape in shapes_of(config).items():
            if name.endswith("_proj.weight"):
                prefix = name.removesuffix(".weight")
                tensors.update({f"{prefix}{end}": each for end, each in layer(*shape).items()})
            else:
                tensors[name] = torch.ones(shape).half() if len(shape) == 1 else torch.randn(shape).half()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}), "utf-8")
        return folder / "model.safetensors"

    return write


def gguf(folder: Path, config: Config) -> Path:
    """Writes a file of llama.cpp with blocks of 4 bits (Q4_0)."""
    import gguf as library
    import transformers
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    names = {of_module: name for name, of_module in get_gguf_hf_weights_map(made, TensorProcessor()).items()}
    writer = library.GGUFWriter(str(folder / "model.gguf"), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_token_list(["a", "b"])
    numbers = np.random.default_rng(0)
    for name, shape in shapes_of(config).items():
        if name.endswith("_proj.weight"):
            rows, columns = shape
            blocks = numbers.integers(0, 256, (rows, columns // 32, 18), np.uint8)
            blocks[..., :2] = _scales(columns // 32, rows, columns).numpy().T.copy().view(np.uint8).reshape(rows, -1, 2)
            kind = library.GGMLQuantizationType.Q4_0
            writer.add_tensor(names[name], blocks.reshape(rows, -1), raw_dtype=kind)
        else:
            made_up = np.ones(shape) if len(shape) == 1 else numbers.standard_normal(shape)
            writer.add_tensor(names[name], made_up.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-6}), "utf-8")
    return folder / "model.gguf"


FORMATS = {
    "gptq": safetensors(gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}),
    "awq": safetensors(awq, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "gguf": gguf,
}
"""Functions that write a checkpoint with its configuration to a folder, and return its file."""


def manifest(folder: Path, file: Path) -> Path:
    """Writes the manifest beside the folder of a model."""
    inputs = [{"shape": [1, 8], "dtype": "int64", "fill": "zeros"}]
    weights = f"net/{file.name}" if file.suffix == ".gguf" else "net"
    huggingface = {"class": "AutoModelForCausalLM", "config": "net/config.json"}
    document = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"huggingface": huggingface, "weights": weights, "dtype": "float32"},
        "defaults": {"partitioners": ["xnnpack"], "quantize": {"torchao": [{"config": "packed"}]}},
        "methods": {"forward": {"example_inputs": inputs}},
    }
    path = folder.parent / "net.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


def peaks(command: list[str]) -> dict[str, float]:
    """Runs a build, which must succeed. Returns the peak memory of each of its stages, in the order of the stages."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    said = bytearray()

    def listen() -> None:
        while True:
            try:
                read = os.read(ours, 1 << 16)
            except OSError:  # the last process has closed the other end
                return
            said.extend(read)

    listener = threading.Thread(target=listen)
    listener.start()
    found: dict[str, float] = {}
    while process.poll() is None:
        stages = _STAGE.findall(said.decode(errors="replace"))
        stage = stages[-1] if stages else "start"
        found[stage] = max(found.get(stage, 0.0), sum(map(megabytes, [process.pid, *descendants(process.pid)])))
        time.sleep(_SECONDS)
    listener.join()
    if process.returncode:
        raise SystemExit(said.decode(errors="replace"))
    return found


def measured(name: str, scratch: Path, layers: int, hidden: int) -> tuple[float, dict[str, float]]:
    """The size of a checkpoint in MB, and the peaks of its build."""
    folder = scratch / f"{name}-{layers}-{hidden}" / "net"
    folder.mkdir(parents=True)
    # in a process of its own, whose memory ends with it
    call = "import pathlib, sys; from benchmarks.memory import run; name, folder, *sizes = sys.argv[1:]"
    call += "; print(run.FORMATS[name](pathlib.Path(folder), run.config_of(*map(int, sizes))))"
    arguments = [sys.executable, "-c", call, name, folder, layers, hidden]
    wrote = subprocess.run([*map(str, arguments)], cwd=frame.ROOT, check=True, capture_output=True, text=True)
    file = Path(wrote.stdout.splitlines()[-1])
    out = folder.parent / "out"
    build = [sys.executable, "-m", "etbuild", "build", "--no-cache", "-o", out, manifest(folder, file)]
    return file.stat().st_size / 1e6, peaks([*map(str, build)])


def row(name: str, scratch: Path, layers: int, hidden: int) -> dict[str, Any]:
    """What is measured for a format."""
    _, tiny = measured(name, scratch, **TINY)
    size, large = measured(name, scratch, layers, hidden)
    baseline, peak = max(tiny.values()), max(large.values())
    return {
        "format": name,
        "file": size,
        "layer": 4 * hidden * hidden * 4 / 1e6,
        "baseline": baseline,
        "peak": peak,
        "above": peak - baseline,
        "above / file": (peak - baseline) / size,
        "stages": [{"stage": stage, "MB": found, "tiny MB": tiny.get(stage, 0.0)} for stage, found in large.items()],
    }


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="FORMAT")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048, help="a multiple of 128")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    rows, stages = [], {}
    for name in options.formats:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(row(name, Path(scratch), options.layers, options.hidden))
        stages[f"{name}, stages"] = rows[-1].pop("stages")
        frame.tell(rows[-1])
        print(frame.table(stages[f"{name}, stages"]), flush=True)
    frame.write(options.write, "memory", {"formats": rows, **stages}, options.loaded)


if __name__ == "__main__":
    main()
