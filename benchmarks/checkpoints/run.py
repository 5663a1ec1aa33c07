"""Measures what a new checkpoint costs: the plain ExecuTorch script against `etbuild build` of the zoo's models.

    python -m benchmarks.checkpoints.run [--models NAME...] [--pairs 3] [--bytes] [--write benchmarks/results]

Each model of the zoo, and each of `LARGE`, gets its weights from a file. Each pair runs the plain script, builds cold,
builds again with another checkpoint, in which all weights are changed, and builds once more when nothing has changed.
Every ratio compares two figures of one pair. `CPU` is user and system time.

`--language-model` builds a Qwen 2.5 of 0.5 billion parameters instead, quantized to 4 bits (8da4w), with HQQ and
without: cold, with other weights in one layer, and with other weights everywhere.

`--bytes` compares no times, but bytes: with each kind of checkpoint in `KINDS`, the program must be that of a lowering
with the weights (`--no-accelerate`), or both builds must refuse it. The command fails if one is not.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.lowering.project import Size, transformer
from benchmarks.lowering.project import write as write_project
from benchmarks.measure import command, usage
from benchmarks.zoo.zoo import MODELS, Json, method, tokens, write

HERE = Path(__file__).resolve().parent
BUILD = [sys.executable, "-m", "etbuild", "build"]
_SOUND = {"shape": [1, 80, 64]}
_TOKENS = tokens(16)
_OF_MODELS: dict[str, tuple[Json, Json]] = {
    "conformer of 8 blocks": (
        {"name": "conformer", "layers": 8, "dim": 144},
        {name: method(name, _SOUND) for name in ("features", "characters")},
    ),
    "8 scanned layers": (
        {"name": "scan", "layers": 8, "dim": 128},
        {name: method(name, _TOKENS) for name in ("states", "logits", "embed")},
    ),
    "wide resnet-50": ({"name": "wide_resnet"}, {"forward": method("forward", {"shape": [1, 3, 224, 224]})}),
}
_ROTARY = "16 rotary layers"
_RATIOS = ("cold / plain", "changed / plain", "changed / cold")
LARGE = (_ROTARY, *_OF_MODELS)
"""Models with many equal layers, or with many weights."""


def others(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Unrelated numbers of the same size."""
    del name
    return torch.randn_like(tensor) * tensor.std(correction=0) + tensor.mean()


def not_a_number(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The same, with one NaN in each matrix."""
    made = others(name, tensor)
    if tensor.dim() > 1:
        made.view(-1)[0] = float("nan")
    return made


KINDS: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "others": others,
    "zeros": lambda _, tensor: torch.zeros_like(tensor),
    "one number": lambda _, tensor: torch.full_like(tensor, 0.25),
    "equal layers": lambda _, tensor: torch.linspace(-0.1, 0.2, tensor.numel()).view(tensor.shape),
    "not a number": not_a_number,
}


def checkpoint(path: Path, kind: str, seed: int, first: Path) -> None:
    """Writes a checkpoint with the tensors of the first one."""
    torch.manual_seed(seed)
    change = KINDS[kind]
    tensors = {
        name: change(name, each) if each.is_floating_point() else each for name, each in load_file(first).items()
    }
    save_file(tensors, path)


def large(name: str, directory: Path) -> Path:
    """Writes one of `LARGE` with `model.safetensors` into a new directory, and returns its manifest."""
    if name == _ROTARY:
        return transformer(directory, Size(layers=16, dim=256, model="rotary_model.py"))
    return write_project(directory, HERE / "models.py", *_OF_MODELS[name])


def project(name: str, directory: Path) -> tuple[Path, Path]:
    """Writes a model whose weights come from a file. Returns its manifest and a copy of the checkpoint."""
    weights = directory / "weights.safetensors"
    if name in LARGE:
        manifest = large(name, directory)
        (directory / "model.safetensors").rename(weights)
        manifest.write_text(manifest.read_text("utf-8").replace("model.safetensors", weights.name), "utf-8")
        return manifest, Path(shutil.copy(weights, directory / "first.safetensors"))
    manifest = write(name, directory)
    document = json.loads(manifest.read_text("utf-8"))
    script = (
        "import importlib, json, sys; import torch; from safetensors.torch import save_model;"
        "sys.path.insert(0, sys.argv[1]); model = json.loads(sys.argv[2]); module, name = model['factory'].split(':');"
        "torch.manual_seed(0); make = getattr(importlib.import_module(module), name);"
        "save_model(make(**model.get('kwargs', {})), sys.argv[3])"
    )
    subprocess.run([sys.executable, "-c", script, directory, json.dumps(document["model"]), weights], check=True)
    document["model"]["weights"] = weights.name
    document["checks"] = {"finite": False}
    manifest.write_text(json.dumps(document), "utf-8")
    return manifest, Path(shutil.copy(weights, directory / "first.safetensors"))


def measure(name: str, scratch: Path, pairs: int) -> Row:
    """The row of one model: medians of its pairs."""
    manifest, first = project(name, scratch / "model")
    found = []
    for number in range(pairs):
        shutil.copy(first, manifest.with_name("weights.safetensors"))
        plain = usage(sys.executable, HERE.parent / "plain.py", manifest, scratch / "plain")
        cached = [*BUILD, manifest, "--json", "--cache-dir", scratch / "cache", "-o", scratch / "out"]
        cold = usage(*cached)
        checkpoint(manifest.with_name("weights.safetensors"), "others", number, first)
        changed = usage(*cached)
        nothing = usage(*cached)
        found.append(
            {
                "plain s": plain.wall,
                "cold s": cold.wall,
                "changed s": changed.wall,
                "nothing s": nothing.wall,
                "cold / plain": cold.wall / plain.wall,
                "CPU / plain": cold.cpu / plain.cpu,
                "changed / plain": changed.wall / plain.wall,
                "changed / cold": changed.wall / cold.wall,
            }
        )
        for made in ("plain", "cache", "out"):
            shutil.rmtree(scratch / made)
    shutil.rmtree(manifest.parent)
    return {"model": name, **{key: statistics.median(pair[key] for pair in found) for key in found[0]}}


def language_model(scratch: Path, scales: str) -> Row:
    """The row of a language model: seconds of its builds, and their parts of the cold one."""
    llm = HERE.parent / "llm"
    folder = scratch / "model"
    command(sys.executable, llm / "checkpoint.py", llm / "qwen2_5/config.json", folder)
    manifest = scratch / f"{scales}.yaml"
    manifest.write_text((llm / "real_size.yaml").read_text("utf-8").replace("hqq_scale_only", scales), "utf-8")
    build = [*BUILD, manifest, "--root", folder, "--cache-dir", scratch / scales, "-o", scratch / "out"]
    weights = folder / "model.safetensors"
    cold = usage(*build)
    command(sys.executable, llm / "change_layer.py", weights)
    layer = usage(*build)
    save_file({name: each * 1.5 for name, each in load_file(weights).items()}, weights, {"format": "pt"})
    changed = usage(*build)
    row: Row = {
        "model": f"qwen 2.5, {scales}",
        "cold s": cold.wall,
        "one layer s": layer.wall,
        "changed s": changed.wall,
    }
    row |= {"cold peak MB": cold.peak, "changed peak MB": changed.peak}
    return {**row, "one layer / cold": layer.wall / cold.wall, "changed / cold": changed.wall / cold.wall}


def built(*arguments: object) -> tuple[dict[str, bytes], str]:
    """The program and its named data by name; empty if the build refuses it. And what it says."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([*BUILD, *map(str, arguments), "-o", out], capture_output=True, text=True, check=False)
        files = {path.name: path.read_bytes() for path in Path(out).iterdir() if path.suffix in (".pte", ".ptd")}
        return files, done.stdout if done.returncode == 0 else done.stderr


def compare(name: str, scratch: Path) -> Row:
    """What differs, by kind of checkpoint."""
    manifest, first = project(name, scratch / "model")
    cached = (manifest, "--cache-dir", scratch / "cache", "--json")
    built(*cached)
    row: Row = {"model": name}
    for number, kind in enumerate(KINDS):
        checkpoint(manifest.with_name("weights.safetensors"), kind, number, first)
        bound, said = built(*cached)
        full, _ = built(manifest, "--no-cache", "--no-accelerate")
        row[kind] = "DIFFERENT" if bound != full else _how(said) if full else "refused"
    shutil.rmtree(scratch)
    return row


def _how(said: str) -> str:
    """What a build says about the methods: whether it bound templates, or lowered."""
    return "bound" if set(json.loads(said)["methods"].values()) == {"cached"} else "lowered"


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *LARGE], default=[*MODELS, *LARGE], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how often each model is built")
    parser.add_argument("--language-model", action="store_true", help="build a model of 0.5 billion parameters instead")
    parser.add_argument("--bytes", action="store_true", help="compare bytes instead of times")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    rows: list[Row] = []
    if options.language_model:
        for scales in ("hqq_scale_only", "affine"):
            with tempfile.TemporaryDirectory() as made:
                rows.append(language_model(Path(made), scales))
                frame.tell(rows[-1])
        frame.write(options.write, "checkpoints", {"language model": rows}, options.loaded)
        return
    for name in options.models:
        scratch = Path(tempfile.mkdtemp()) / "model"
        scratch.mkdir()
        rows.append(compare(name, scratch) if options.bytes else measure(name, scratch, options.pairs))
        shutil.rmtree(scratch.parent)
        frame.tell(rows[-1])
        if not options.bytes:
            measured = frame.joined(options.write, "checkpoints", "models", rows, options.loaded)
            sections = {"models": measured, "summary": frame.summary(measured, _RATIOS)}
            frame.write(options.write, "checkpoints", sections, options.loaded)  # it may be ended
    if options.bytes:
        if any("DIFFERENT" in row.values() for row in rows):
            sys.exit("a program differs from that of a lowering with its weights")
        return
    print(frame.table(sections["summary"]))


if __name__ == "__main__":
    main()
