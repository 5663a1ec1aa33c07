"""Builds the manifests of examples/gallery, and compares each program with eager PyTorch.

    python -m tests.gallery             writes docs/gallery.md, which takes some minutes
    python -m tests.gallery bert vit    measures these, and keeps the other rows of the page
    pytest tests/integration/test_gallery.py

The inputs are random, because constant ones could hide that a program mixes up elements. Dynamic methods run at
several lengths. The module comes from transformers or the factory, with the manifest's seed, and never from the driver.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
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
        size: The bytes of the program.
        delegated: The operators that XNNPACK computes.
        operators: All operators.
        largest: The largest absolute value of all outputs in eager PyTorch.
        difference: The largest difference to eager PyTorch, as a share of `largest`.
    """

    name: str
    about: str
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
    build(path, scratch, environment=None)
    report = json.loads((scratch / f"{name}.report.json").read_text("utf-8"))
    operators = [method["operators"] for method in report["methods"].values()]
    delegated = sum(sum(counts.values()) for each in operators for counts in each["delegated"].values())
    module = _module(manifest["model"])
    with torch.no_grad():
        sessions = list(_SESSIONS[manifest["model"].get("huggingface", {}).get("task")](manifest, module))
    outputs = run(scratch / f"{name}.pte", [calls for calls, _ in sessions], scratch)
    largest = difference = 0.0
    for (_, wanted), results in zip(sessions, outputs, strict=True):
        for expected, found in zip(wanted, results, strict=True):
            for one, other in zip(expected, found, strict=True):
                largest = max(largest, float(one.abs().max()))
                difference = max(difference, float((one - other).abs().max()))
    return Row(
        name=name,
        about=path.read_text("utf-8").splitlines()[2].removeprefix("# "),
        size=(scratch / f"{name}.pte").stat().st_size,
        delegated=delegated,
        operators=delegated + sum(sum(each["fallback"].values()) for each in operators),
        largest=largest,
        difference=difference / largest if largest else float("inf"),
    )


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


Session = tuple[list[Call], list[list[torch.Tensor]]]
"""The calls of one session, and the outputs of each of them in eager PyTorch."""


def _plain(manifest: dict[str, Any], module: torch.nn.Module) -> Iterator[Session]:
    """One call of a model without a task."""
    numbers, method = torch.Generator().manual_seed(0), manifest["methods"]["forward"]
    positional = [_random(example, numbers) for example in method.get("example_inputs", [])]
    named = {name: _random(example, numbers) for name, example in method.get("example_kwargs", {}).items()}
    yield [("forward", [*positional, *named.values()])], [_tensors(module(*positional, **named))]


def _decoder(manifest: dict[str, Any], module: torch.nn.Module) -> Iterator[Session]:
    """Two prompts of several lengths and one token. In eager PyTorch, the decoder reads them without a cache."""
    del manifest
    for length in (1, 7, 16):
        texts = _texts(torch.Generator().manual_seed(length), length, length, 1)
        scores = module(input_ids=torch.cat(texts, dim=1)).logits
        calls: list[Call] = [("forward", [text, start]) for text, start in zip(texts, _starts(texts), strict=True)]
        yield calls, [[part] for part in scores.split([text.shape[1] for text in texts], dim=1)]


def _encoder_decoder(manifest: dict[str, Any], module: torch.nn.Module) -> Iterator[Session]:
    """A text or speech for the encoder, and six tokens one after the other. The decoder gets eager PyTorch's states."""
    config = manifest["model"]["huggingface"]["config"]
    for length in (1, 7, 32):
        numbers = torch.Generator().manual_seed(length)
        [source] = _texts(numbers, length)
        if "num_mel_bins" in config:
            source = torch.randn(1, config["num_mel_bins"], 2 * config["max_source_positions"], generator=numbers)
        texts = _texts(numbers, *[1] * 6)
        states = module.get_encoder()(source).last_hidden_state
        scores = module(source, decoder_input_ids=torch.cat(texts, dim=1), use_cache=False).logits[0]
        calls: list[Call] = [("encoder", [source])]
        calls += [("text_decoder", [text, states, at]) for text, at in zip(texts, _starts(texts), strict=True)]
        yield calls, [[states], *([part] for part in scores.split(1))]


def _image_text(manifest: dict[str, Any], module: Any) -> Iterator[Session]:
    """An image and a text, each with its encoder. The runner's tests in test_image_text.py compare their use."""
    config = manifest["model"]["huggingface"]["config"]
    size, numbers = config["vision_config"]["image_size"], torch.Generator().manual_seed(0)
    image = torch.randn(1, 3, size, size, generator=numbers)
    pixels = image.unsqueeze(0) if "scale_factor" in config else image  # SmolVLM takes several images
    features = torch.cat(list(module.get_image_features(pixel_values=pixels, return_dict=True).pooler_output))
    [before, after] = _texts(numbers, 5, 7)
    places = torch.full((1, len(features)), config["image_token_id"])
    ids = torch.cat([before, places, after], dim=1)
    types = {} if "scale_factor" in config else {"token_type_ids": (ids == config["image_token_id"]).long()}
    scores = module(input_ids=ids, pixel_values=pixels, **types).logits
    # Some decoders take a last value that says which embeddings belong to an image.
    marks = 0 if "scale_factor" in config else 1
    parts = [module.get_input_embeddings()(before), features[None], module.get_input_embeddings()(after)]
    marked = [torch.nn.functional.pad(part, (0, marks), value=float(at == 1)) for at, part in enumerate(parts)]
    calls: list[Call] = [("vision_encoder", [image]), ("token_embedding", [after])]
    calls += [("text_decoder", [part, at]) for part, at in zip(marked, _starts(marked), strict=True)]
    ends = [int(at) - 1 for at in _starts(marked)[1:]] + [ids.shape[1] - 1]
    yield calls, [[marked[1]], [marked[2]], *([scores[:, end]] for end in ends)]


_SESSIONS: dict[str | None, Callable[[dict[str, Any], Any], Iterator[Session]]] = {
    None: _plain,
    "text-generation": _decoder,
    "seq2seq": _encoder_decoder,
    "speech-to-text": _encoder_decoder,
    "image-text-to-text": _image_text,
}


def _texts(numbers: torch.Generator, *lengths: int) -> list[torch.Tensor]:
    """Texts of random tokens. The last token of the vocabulary stands for an image."""
    return [torch.randint(3, 255, (1, length), generator=numbers) for length in lengths]


def _starts(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The position at which each part begins, int64 [1]."""
    lengths = itertools.accumulate((part.shape[1] for part in parts[:-1]), initial=0)
    return [torch.tensor([length]) for length in lengths]


def _random(example: dict[str, Any], numbers: torch.Generator) -> torch.Tensor:
    if example.get("dtype") == "int64":
        return torch.randint(250, example["shape"], generator=numbers)
    return torch.randn(example["shape"], generator=numbers)


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in the order in which a program returns them."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.to_tuple() if hasattr(value, "to_tuple") else value
    return [tensor for part in parts if part is not None for tensor in _tensors(part)]


_PAGE = """\
# Gallery: manifests of {count} architectures to copy

For people who look for a model like theirs.
Architectures of transformers at small sizes, and some models of our own. Copy the manifest from
[`examples/gallery`](../examples/gallery), and put your configuration and weights into it.

`make gallery` builds all of them, runs them in ExecuTorch's runtime on random inputs, compares the outputs with eager
PyTorch, and writes this page. `make test-all` only compares.

Measured with ExecuTorch {executorch}, torch {torch} and transformers {transformers} on {machine}.
*Difference* is the largest one, as a share of the largest output. *Delegated* counts the operators of XNNPACK.

| manifest | what it is | size | delegated | difference | |
|---|---|---|---|---|---|
"""


def page(rows: list[str]) -> str:
    """The text of docs/gallery.md with these rows of its table."""
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in _MEASURED_WITH}
    return "".join([_PAGE.format(**versions, machine=platform.machine(), count=len(NAMES)), *rows])


def _line(row: Row) -> str:
    cells = [
        f"[{row.name}](../examples/gallery/{row.name}.yaml)",
        row.about.rstrip("."),
        f"{row.size / 1000:.0f} kB",
        f"{row.delegated} of {row.operators}",
        f"{row.difference:.0e}",
        "right" if row.right else "wrong",
    ]
    return f"| {' | '.join(cells)} |\n"


def _rows_of_page() -> dict[str, str]:
    """The rows of the page as it is, by the name of their manifest."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| [")]
    return {line.partition("]")[0].removeprefix("| ["): f"{line}\n" for line in lines}


def main(arguments: list[str]) -> int:
    """Measures programs and writes the page. The exit code is 1 if one is wrong.

    Args:
        arguments: The names of the manifests to measure; the page keeps its other rows. Without names, all of them.
    """
    cells, right = _rows_of_page() if arguments else {}, True
    for name in arguments or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            row = measure(name, Path(scratch))
            print(row, file=sys.stderr, flush=True)
            cells[name], right = _line(row), right and row.right
    PAGE.write_text(page([cells[name] for name in NAMES]), "utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
