"""Builds the manifests of examples/gallery, and compares each program with eager PyTorch.

    python -m tests.gallery             writes docs/gallery.md, which takes some minutes
    pytest tests/integration/test_gallery.py

The inputs are random, because constant ones could hide that a program mixes up elements. Dynamic methods run at
several lengths. The module comes from transformers or the factory, with the manifest's seed, and never from the driver.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.helpers.commands import build
from tests.helpers.runtime import Call, run

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "examples/gallery"
PAGE = ROOT / "docs/gallery.md"
NAMES = sorted(path.stem for path in GALLERY.glob("*.yaml"))
TOLERANCE = 1e-3
"""The largest difference to eager PyTorch, as a share of the largest output. All programs compute in float32."""
LEAST_OUTPUT = 0.05
"""The largest output must be larger, because a program that returns zeros agrees with a model that almost does."""
_MEASURED_WITH = ("executorch", "torch", "transformers")


@dataclass(frozen=True)
class Row:
    """What was measured of one program.

    Attributes:
        name: The name of the manifest.
        about: The first comment of the manifest.
        seconds: The wall time of `etbuild build` without the cache, in a process of its own.
        size: The bytes of the program.
        delegated: The operators that XNNPACK computes.
        operators: All operators.
        largest: The largest absolute value of all outputs in eager PyTorch.
        difference: The largest difference to eager PyTorch, as a share of `largest`.
    """

    name: str
    about: str
    seconds: float
    size: int
    delegated: int
    operators: int
    largest: float
    difference: float

    @property
    def right(self) -> bool:
        """Whether the program computes what eager PyTorch computes."""
        return self.difference < TOLERANCE and self.largest > LEAST_OUTPUT


def measure(name: str, scratch: Path) -> Row:
    """Builds and runs one program of the gallery.

    Args:
        name: The name of its manifest.
        scratch: An empty directory.
    """
    path = GALLERY / f"{name}.yaml"
    manifest = yaml.safe_load(path.read_text("utf-8"))
    start = time.monotonic()
    build(path, scratch, environment=None)
    seconds = time.monotonic() - start
    report = json.loads((scratch / f"{name}.report.json").read_text("utf-8"))
    operators = report["methods"]["forward"]["operators"]
    delegated = sum(sum(counts.values()) for counts in operators["delegated"].values())
    module = _module(manifest["model"])
    sessions = [_calls(manifest, length) for length in (1, 7, 16)] if _is_decoder(manifest) else [_calls(manifest, 0)]
    outputs = run(scratch / f"{name}.pte", sessions, scratch)
    largest = difference = 0.0
    for calls, results in zip(sessions, outputs, strict=True):
        for expected, found in zip(_eager(manifest, module, calls), results, strict=True):
            for one, other in zip(expected, found, strict=True):
                largest = max(largest, float(one.abs().max()))
                difference = max(difference, float((one - other).abs().max()))
    return Row(
        name=name,
        about=path.read_text("utf-8").splitlines()[2].removeprefix("# "),
        seconds=seconds,
        size=(scratch / f"{name}.pte").stat().st_size,
        delegated=delegated,
        operators=delegated + sum(operators["fallback"].values()),
        largest=largest,
        difference=difference / largest if largest else float("inf"),
    )


def _is_decoder(manifest: dict[str, Any]) -> bool:
    return "task" in manifest["model"].get("huggingface", {})


def _module(model: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(model.get("seed", 0))
    if "factory" in model:
        place, _, function = model["factory"].partition(":")
        sys.path.insert(0, str(GALLERY))
        try:
            made: torch.nn.Module = getattr(importlib.import_module(place), function)(**model.get("kwargs", {}))
        finally:
            sys.path.remove(str(GALLERY))
        return made.eval()
    import transformers

    cls = getattr(transformers, model["huggingface"]["class"])
    made = cls._from_config(cls.config_class(**model["huggingface"]["config"]))
    return made.eval()


def _calls(manifest: dict[str, Any], length: int) -> list[Call]:
    """The calls of one session: for a decoder two prompts of a length and one token, for others one call."""
    numbers = torch.Generator().manual_seed(length)
    if _is_decoder(manifest):
        calls: list[Call] = []
        position = 0
        for count in (length, length, 1):
            ids = torch.randint(256, (1, count), generator=numbers)
            calls.append(("forward", [ids, torch.tensor([position])]))
            position += count
        return calls
    method = manifest["methods"]["forward"]
    examples = [*method.get("example_inputs", []), *method.get("example_kwargs", {}).values()]
    return [("forward", [_random(example, numbers) for example in examples])]


def _random(example: dict[str, Any], numbers: torch.Generator) -> torch.Tensor:
    if example.get("dtype") == "int64":
        return torch.randint(250, example["shape"], generator=numbers)
    return torch.randn(example["shape"], generator=numbers)


def _eager(manifest: dict[str, Any], module: torch.nn.Module, calls: list[Call]) -> list[list[torch.Tensor]]:
    """The outputs of each call. A decoder reads all tokens so far, without a cache."""
    with torch.no_grad():
        if _is_decoder(manifest):
            ids = torch.cat([inputs[0] for _, inputs in calls], dim=1)
            scores, ends, start = module(input_ids=ids).logits, [], 0
            for _, inputs in calls:
                ends.append([scores[:, start : start + inputs[0].shape[1]]])
                start += inputs[0].shape[1]
            return ends
        names = list(manifest["methods"]["forward"].get("example_kwargs", {}))
        [(_, inputs)] = calls
        count = len(inputs) - len(names)
        keywords = dict(zip(names, inputs[count:], strict=True))
        return [_tensors(module(*inputs[:count], **keywords))]


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in the order in which a program returns them."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.to_tuple() if hasattr(value, "to_tuple") else value
    return [tensor for part in parts if part is not None for tensor in _tensors(part)]


_PAGE = """\
# Gallery

Architectures of transformers at small sizes, and three models of our own, each from a manifest in
[`examples/gallery`](../examples/gallery) to a program. `make gallery` builds all of them, runs them in ExecuTorch's
runtime on random inputs, compares the outputs with eager PyTorch, and writes this page. `make test-all` only
compares.

Measured with ExecuTorch {executorch}, torch {torch} and transformers {transformers} on {machine}, without the cache.
*Difference* is the largest one, as a share of the largest output. *Delegated* counts the operators of XNNPACK.

| manifest | what it is | build | size | delegated | difference | |
|---|---|---|---|---|---|---|
"""


def page(rows: list[Row]) -> str:
    """The text of docs/gallery.md."""
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in _MEASURED_WITH}
    lines = [_PAGE.format(**versions, machine=platform.machine())]
    for row in rows:
        cells = [
            f"[{row.name}](../examples/gallery/{row.name}.yaml)",
            row.about.rstrip("."),
            f"{row.seconds:.0f} s",
            f"{row.size / 1000:.0f} kB",
            f"{row.delegated} of {row.operators}",
            f"{row.difference:.0e}",
            "right" if row.right else "wrong",
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def main() -> int:
    """Measures every program and writes the page. The exit code is 1 if one is wrong."""
    rows = []
    for name in NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(measure(name, Path(scratch)))
            print(rows[-1], file=sys.stderr, flush=True)
    PAGE.write_text(page(rows), "utf-8")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
