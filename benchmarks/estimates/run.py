#!/usr/bin/env python3
"""Compares what `etbuild plan --memory` says with what builds take, and measures the windows of a language model.

    python -m benchmarks.estimates.run [--only programs windows] [--models NAME...] [--again]
        [--write benchmarks/results]

Each model is built with an empty cache, and then estimated: an estimate from the cache is the same. `build` is the
largest memory of all processes of the build together, `files` the size of the program, and `kept` what a process of
ExecuTorch's runtime keeps that is no part of a file, after calls of all methods: planned memory, and weights in the
form of the backend. All are in MB (10**6 bytes). A ratio is what was said, divided by what was measured.

    programs    models of the zoo and networks for images, and language models of transformers, with random weights
    windows     one language model with caches of 2,048 to 32,768 tokens, in calls of up to 512, and of all tokens: what
                the program plans, and its largest tensor
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.measure import command
from benchmarks.zoo import zoo
from etkit.estimating import peak
from tests.helpers.worker_client import descendants

LLM = Path(__file__).resolve().parents[1] / "llm"
ETBUILD = [sys.executable, "-m", "etbuild"]
QWEN: dict[str, Any] = json.loads((LLM / "qwen3/config.json").read_text("utf-8"))
_WINDOW = {"max_position_embeddings": 32768}
_8DA4W = {"torchao": [{"config": "8da4w", "group_size": 32}, {"config": "int8", "layers": ["embedding"]}]}
OF_ZOO = ("llama", "llama, 8da4w", "bert", "clip", "whisper", "resnet", "mobilenet v2, int8", "u-net", "lstm")
_LARGE = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 2}
OF_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "qwen 3": {"config": {"num_hidden_layers": 2}},
    "qwen 3, 4 bits": {"config": {"num_hidden_layers": 2}, "quantize": _8DA4W},
    "qwen 3, wide": {"config": _LARGE},
    "qwen 3, wide, 4 bits": {"config": _LARGE, "quantize": _8DA4W},
    "qwen 3, very wide": {"config": {**_LARGE, "hidden_size": 2048, "intermediate_size": 8192}},
    "qwen 3, 32,768 tokens": {
        "config": {"num_hidden_layers": 2, **_WINDOW},
        "cache": {"max_length": 32768, "max_seq_length": 512},
    },
    "llama, static cache": {
        "config": {"model_type": "llama", "num_hidden_layers": 2},
        "cache": {"max_length": 2048, "max_seq_length": 512, "kind": "static"},
    },
    "gemma 3, ring": {
        "config": {
            "model_type": "gemma3_text",
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 512,
            "query_pre_attn_scalar": 64,
            **_WINDOW,
        },
        "cache": {"max_length": 16384, "max_seq_length": 256, "kind": "ring"},
    },
}
"""Language models: keys of their configuration that differ from those of `llm/qwen3`, their cache, and `quantize`."""
_IMAGE = {"forward": zoo.method("forward", zoo.image(224))}
_RESNET = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "num_labels": 1000}
OF_IMAGES = {
    "resnet 18": zoo.Model("resnet", _IMAGE, config={**_RESNET, "depths": [2, 2, 2, 2]}),
    "resnet 18, int8": zoo.Model("resnet", _IMAGE, config={**_RESNET, "depths": [2, 2, 2, 2]}, quantize=zoo.INT8),
    "mobilenet v2, 224": zoo.Model("mobilenet_v2", _IMAGE, config={"depth_multiplier": 1.0, "image_size": 224}),
}
"""Networks for images in the sizes in which people use them."""
WINDOWS = (2048, 4096, 8192, 16384, 32768)
_LAYERS = 2
_SECONDS = 0.2


def language_model(scratch: Path, config: Mapping[str, Any], cache: Mapping[str, Any], quantize: Any) -> dict[str, Any]:
    """The manifest of a language model, whose checkpoint with random weights it writes."""
    keys = {**QWEN, **config}
    (scratch / "made.json").write_text(json.dumps(keys), "utf-8")
    command(sys.executable, LLM / "checkpoint.py", scratch / "made.json", scratch / "net")
    huggingface = {
        "task": "text-generation",
        "config": "net/config.json",
        "cache": {"max_length": 1024, "max_seq_length": 512, "kind": "custom", **cache},
        "logits": "last",
    }
    return {
        "schema": "executorch-model/v1",
        "name": "program",
        "model": {"huggingface": huggingface, "dtype": "float32", "weights": "net/model.safetensors"},
        "defaults": {"partitioners": ["xnnpack"], **({"quantize": quantize} if quantize else {})},
    }


def manifest(name: str, scratch: Path) -> Path:
    """Writes a model and its manifest."""
    if name in OF_ZOO or name in OF_IMAGES:
        return zoo.write(OF_IMAGES.get(name, name), scratch / "zoo")
    model = OF_TRANSFORMERS[name]
    made = language_model(scratch, model.get("config", {}), model.get("cache", {}), model.get("quantize"))
    (scratch / "model.yaml").write_text(json.dumps(made), "utf-8")  # JSON is YAML
    return scratch / "model.yaml"


def said(path: Path, cache: Path, *more: str) -> list[dict[str, Any]]:
    """The estimates of a manifest."""
    command = [*ETBUILD, "plan", "--memory", "--json", "--cache-dir", cache, path, *more]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["programs"]
    return found


def largest(*arguments: object) -> float:
    """Runs a command, which must succeed. Returns the largest memory of its processes together, in MB.

    Forks share memory, which counts once. Of files, those of the process with most of them count: libraries are the
    same in all. `benchmarks.measure.usage` shares them with processes of others, too.
    """
    found = 0.0
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*map(str, arguments)], stdout=log, stderr=log)
        while process.poll() is None:
            each = [*map(_memory, [process.pid, *descendants(process.pid)])]
            found = max(found, sum(own for own, _ in each) + max((files for _, files in each), default=0.0))
            time.sleep(_SECONDS)
        log.seek(0)
        if process.returncode:
            raise SystemExit(log.read().decode(errors="replace"))
    return found


def _memory(pid: int) -> tuple[float, float]:
    """The memory of a process that no file holds, of which forks share parts, and that of files, in MB."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        sizes = {name: int(size) * 1024 / 1e6 for name, size in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
        return sizes["Pss"] - sizes.get("Pss_File", 0.0), sizes["Rss"] - sizes["Anonymous"]
    return 0.0, 0.0


def kept(out: Path, methods: int) -> float | None:
    """What processes of the runtime keep after calls, in MB: the sum of all methods, or what the method of texts keeps.
    None if it cannot be measured."""
    bench = [*ETBUILD, "bench", out, "--json", "--runs", "2", "--calls", "2"]
    done = subprocess.run([*map(str, bench)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return None
    found = [phase["program"]["memory"]["kept"] for phase in json.loads(done.stdout)["phases"]]
    return float(sum(found) if len(found) == methods else max(found)) / 1e6


def row(name: str, scratch: Path) -> Row:
    """What is said and measured of a model."""
    path = manifest(name, scratch)
    measured = largest(*ETBUILD, "build", path, "--cache-dir", scratch / "cache", "-o", scratch / "out")
    [estimate] = said(path, scratch / "cache")
    files = sum(each.stat().st_size for each in scratch.glob("out/program*.p*")) / 1e6
    report = json.loads((scratch / "out/program.report.json").read_text("utf-8"))
    planned = {method: sum(each["memory"]) for method, each in report["methods"].items()}
    same = planned == {method: each["planned"] for method, each in estimate["methods"].items()}
    of_runtime = None if name in OF_ZOO else kept(scratch / "out", len(planned))
    return {
        "model": name,
        "build": measured,
        "build, ratio": estimate["build"] / 1e6 / measured,
        "files": files,
        "files, ratio": sum(estimate["files"].values()) / 1e6 / files,
        "planned": estimate["planned"] / 1e6,
        "same plan": same,
        "kept": "" if of_runtime is None else of_runtime,
        "kept, ratio": "" if of_runtime is None else estimate["resident"] / 1e6 / of_runtime,
        "needs": [*estimate["build_depends_on"].values()],
    }


def windows(scratch: Path, lengths: Sequence[int]) -> Iterator[Row]:
    """A row for each kind of cache, each longest call and each window: one language model of few layers."""
    made = language_model(scratch, {"num_hidden_layers": _LAYERS, **_WINDOW}, {}, None)
    caches = {
        f"{kind}-{longest or 'all'}-{length}": {
            "kind": kind,
            "max_length": length,
            "max_seq_length": longest or length,
        }
        for kind in ("custom", "quantized", "static")
        for longest in (512, None)
        for length in lengths
    }
    variants = {name: {"model": {"huggingface": {"cache": cache}}} for name, cache in caches.items()}
    path = scratch / "windows.yaml"
    path.write_text(json.dumps({**made, "variants": variants}), "utf-8")
    for each in said(path, scratch / "cache", "--variant", "all", "--within", "100TB")[1:]:
        kind, longest, length = each["name"].rpartition(".")[2].split("-")
        tensors = [tensor for method in each["methods"].values() for tensor in method["largest"]]
        nothing: dict[str, Any] = {"tensor": "", "bytes": 0}
        biggest = max(tensors, key=lambda tensor: int(tensor["bytes"]), default=nothing)
        yield {
            "cache": kind,
            "call": "all tokens" if longest == "all" else longest,
            "window": int(length),
            "planned": each["planned"] / 1e6,
            "state": each["state"] / 1e6,
            "resident": each["resident"] / 1e6,
            "files": sum(each["files"].values()) / 1e6,
            "largest": biggest["tensor"],
            "largest MB": biggest["bytes"] / 1e6,
        }


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    names = [*OF_ZOO, *OF_IMAGES, *OF_TRANSFORMERS]
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--only", nargs="+", choices=("programs", "windows"), default=["programs", "windows"])
    parser.add_argument("--windows", nargs="+", type=int, default=WINDOWS, metavar="TOKENS")
    parser.add_argument("--again", action="store_true", help="estimate builds again that were measured before")
    options = parser.parse_args()
    if options.again:
        rows = frame.read("estimates")["sections"]["programs"]
        for each in rows:
            each["build, ratio"] = peak.of_build(peak.Needs(*each["needs"])) / 1e6 / each["build"]
        print(frame.table(rows))
        frame.write(options.write, "estimates", {"programs": rows}, loaded=True)
        return
    frame.begin(options.write, options.loaded)
    sections: dict[str, list[Row]] = {each: [] for each in options.only}
    for name in options.models if "programs" in options.only else ():
        with tempfile.TemporaryDirectory() as scratch:
            found = row(name, Path(scratch))
        frame.tell(found)
        rows = frame.joined(options.write, "estimates", "programs", [*sections["programs"], found], options.loaded)
        sections["programs"] = rows
        frame.write(options.write, "estimates", {"programs": rows}, options.loaded)  # it may be ended
    if "windows" in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            for each in windows(Path(scratch), options.windows):
                sections["windows"].append(each)
                frame.tell(each)
    for rows in sections.values():
        print(frame.table(rows), flush=True)
    frame.write(options.write, "estimates", sections, options.loaded)


if __name__ == "__main__":
    main()
