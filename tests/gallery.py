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
import math
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from tests.helpers.commands import worker
from tests.helpers.runtime import Call, run

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "examples/gallery"
PAGE = ROOT / "docs/gallery.md"
NAMES = sorted(path.stem for path in GALLERY.glob("*.yaml"))
TOLERANCE = 1e-3
"""The largest difference to eager PyTorch, as a share of the largest output. These programs compute in float32."""
LEAST_OUTPUT = 0.05
"""The largest output must be larger, because a program that returns zeros agrees with a model that almost does."""
KINDS = ("float32", "float16", "int8")
"""The numbers in which programs compute."""
_BATCHES = 8
_MEASURED_WITH = ("executorch", "torch", "transformers")


@dataclass(frozen=True)
class Measured:
    """What was measured of one program.

    Attributes:
        size: The bytes of the program.
        memory: The bytes that are planned for its methods.
        delegated: The operators that XNNPACK computes.
        operators: All operators.
        largest: The largest absolute value of all outputs in eager PyTorch.
        difference: The largest difference to eager PyTorch, as a share of `largest`.
        decibels: The ratio of signal to error of all outputs.
    """

    size: int
    memory: int
    delegated: int
    operators: int
    largest: float
    difference: float
    decibels: float

    @property
    def right(self) -> bool:
        """Whether the program computes what eager PyTorch computes in float32."""
        return self.difference < TOLERANCE and self.largest > LEAST_OUTPUT


class Refused(Exception):
    """`etbuild` does not build a program. The message is its error."""


def measure(name: str, scratch: Path, kind: str = "float32") -> Measured:
    """Builds and runs one program of the gallery.

    Args:
        name: The name of its manifest.
        scratch: An empty directory.
        kind: One of `KINDS`.

    Raises:
        Refused: The program cannot compute in these numbers.
    """
    path = GALLERY / f"{name}.yaml"
    manifest = yaml.safe_load(path.read_text("utf-8"))
    if kind != "float32":
        path = scratch / path.name
        path.write_text(json.dumps(_in_numbers(manifest, kind, scratch)), "utf-8")
    answer = worker().ask("build", path, "--root", GALLERY, "-o", scratch, "--no-cache")
    if answer.exit_code:
        raise Refused(answer.output)
    report = json.loads((scratch / f"{name}.report.json").read_text("utf-8"))
    operators = [method["operators"] for method in report["methods"].values()]
    delegated = sum(sum(counts.values()) for each in operators for counts in each["delegated"].values())
    module = _module(manifest["model"])
    with torch.no_grad():
        called = list(_SESSIONS[manifest["model"].get("huggingface", {}).get("task")](manifest, module))
    sessions = [part for session in called for part in _of_methods(session)]
    outputs = run(scratch / f"{name}.pte", [calls for calls, _ in sessions], scratch)
    largest = difference = signal = error = 0.0
    for (_, wanted), results in zip(sessions, outputs, strict=True):
        for expected, found in zip(wanted, results, strict=True):
            for one, other in zip(expected, found, strict=True):
                largest = max(largest, float(one.abs().max()))
                difference = max(difference, float((one - other).abs().max()))
                signal += float(one.double().square().sum())
                error += float((one.double() - other.double()).square().sum())
    return Measured(
        size=(scratch / f"{name}.pte").stat().st_size,
        memory=sum(sum(method["memory"]) for method in report["methods"].values()),
        delegated=delegated,
        operators=delegated + sum(sum(each["fallback"].values()) for each in operators),
        largest=largest,
        difference=difference / largest if largest else math.inf,
        decibels=10 * math.log10(signal / error) if error else math.inf,
    )


def _in_numbers(manifest: dict[str, Any], kind: str, scratch: Path) -> dict[str, Any]:
    """The manifest of a program that computes in 16-bit floats, or in integers with random inputs as calibration.

    Methods of texts get integers in their linear layers only.
    """
    made: dict[str, Any] = json.loads(json.dumps(manifest))
    made["checks"] = {"compare": {"work": 0}}  # one call: the outputs are compared here
    if kind == "float16":
        made["model"]["dtype"] = {"compute": "float16"}
        return made
    examples = _examples(made["methods"]["forward"]) if "methods" in made else {}
    if not examples or any(example.get("dtype") == "int64" for example in examples.values()):
        quantize: dict[str, Any] = {"torchao": [{"config": "8da8w"}]}
    else:
        numbers = torch.Generator().manual_seed(1)
        batches = {
            key: torch.stack([_random(example, numbers) for _ in range(_BATCHES)]) for key, example in examples.items()
        }
        save_file(batches, scratch / "calibration.safetensors")
        save_file({key: batch[0].clone() for key, batch in batches.items()}, scratch / "inputs.safetensors")
        for key, example in examples.items():  # the build measures the loss on the example inputs
            example.clear()
            example.update(file="inputs.safetensors", key=key)
        calibration = {"file": "calibration.safetensors", "keys": [*examples]}
        quantizer = {"backend": "xnnpack", "options": {"per_channel": True}}
        quantize = {"pt2e": {"quantizers": [quantizer], "calibration": calibration}}
    made["defaults"]["quantize"] = quantize
    return made


def _examples(method: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The example inputs of a method, in their order."""
    positional = {f"input_{number}": example for number, example in enumerate(method.get("example_inputs", []))}
    return {**positional, **method.get("example_kwargs", {})}


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


def _of_methods(session: Session) -> Iterator[Session]:
    """A session for each method: in the Python runtime, methods of one loaded program overwrite each other's state."""
    for name in dict.fromkeys(method for method, _ in session[0]):
        calls, wanted = zip(*(each for each in zip(*session, strict=True) if each[0][0] == name), strict=True)
        yield list(calls), list(wanted)


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

`make gallery` builds each of them three times, runs the programs in ExecuTorch's runtime on random inputs, compares the
outputs with eager PyTorch in float32, and writes this page. `make test-all` only compares.

Measured with ExecuTorch {executorch}, torch {torch} and transformers {transformers} on {machine}.

- *Lines* are those of the manifest. *Delegated* counts the operators of XNNPACK in float32.
- *Memory* is what the program plans for its methods in float32, without what XNNPACK takes.
- Each kind of numbers has the size of the program and its agreement: the ratio of signal to error of all outputs. The
  inputs and outputs stay float32. The weights are random, and each model is small: a trained one loses another part.
- A dash is what was not measured yet. *refused*: `etbuild` says why it builds no program in these numbers.
- [float16](float16.md) is `model.dtype: {{compute: float16}}`. int8 is [`pt2e`](quantization.md), or
  `torchao` (`8da8w`) for models of texts.

| manifest | what it is | lines | delegated | memory | float32 | float16 | int8 | |
|---|---|---|---|---|---|---|---|---|
"""


def page(rows: list[str]) -> str:
    """The text of docs/gallery.md with these rows of its table."""
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in _MEASURED_WITH}
    return "".join([_PAGE.format(**versions, machine=platform.machine(), count=len(NAMES)), *rows])


def _line(name: str, measured: dict[str, Measured | None]) -> str:
    """The row of a program; None: it cannot compute in these numbers."""
    text = (GALLERY / f"{name}.yaml").read_text("utf-8").splitlines()
    first = measured["float32"]
    assert first is not None, "all programs can"
    cells = [
        f"[{name}](../examples/gallery/{name}.yaml)",
        text[2].removeprefix("# ").rstrip("."),
        str(sum(bool(line.strip()) and not line.startswith("#") for line in text)),
        f"{first.delegated} of {first.operators}",
        f"{first.memory / 1000:.0f} kB",
        *map(_cell, measured.values()),
        "right" if first.right else "wrong",
    ]
    return f"| {' | '.join(cells)} |\n"


def _cell(measured: Measured | None) -> str:
    if measured is None:
        return "refused"
    agreement = "exact" if math.isinf(measured.decibels) else f"{measured.decibels:.0f} dB"
    return f"{measured.size / 1000:.0f} kB, {agreement}"


def _measured(name: str, kind: str) -> Measured | None:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = measure(name, Path(scratch), kind)
        except Refused as why:
            print(f"{name} in {kind}: {why}", file=sys.stderr, flush=True)
            return None
    print(f"{name} in {kind}: {found}", file=sys.stderr, flush=True)
    return found


def _rows_of_page() -> dict[str, str]:
    """The rows of the page as it is, by the name of their manifest."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| [")]
    return {line.partition("]")[0].removeprefix("| ["): f"{line}\n" for line in lines}


def main(arguments: list[str]) -> int:
    """Measures programs and writes the page, after each row. The exit code is 1 if one is wrong.

    Args:
        arguments: The names of the manifests to measure; the page keeps its other rows. Without names, all of them.
    """
    cells = _rows_of_page() if arguments else {}
    for name in arguments or NAMES:
        cells[name] = _line(name, {kind: _measured(name, kind) for kind in KINDS})
        PAGE.write_text(page([cells[each] for each in NAMES if each in cells]), "utf-8")
    return 0 if all(row.endswith("| right |\n") for row in cells.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
