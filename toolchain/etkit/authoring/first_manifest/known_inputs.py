"""The inputs of a class of Hugging Face whose shape is known: from its configuration, or from the words of its
docstring."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from etkit.authoring.first_manifest import image_size
from etkit.authoring.first_manifest.files import positive
from etkit.authoring.first_manifest.kinds import longest_text
from etplugins.transformers.class_inputs import ClassInputs

TEXT = 16  # tokens of an example
_CHOICES = 2
_NESTED = ("text_config", "vision_config")
_BATCH, _LENGTHS = ("batch", "batch_size"), ("length", "seq_len")
_NO_DATA = ("_mask", "_embeds")
"""The ends of names of inputs that hide others, and hide nothing if left out, or that are in the place of others."""


@dataclass(frozen=True)
class Input:
    """An input of a class.

    Attributes:
        sizes: Its sizes.
        dtype: Its dtype.
        text: The dimension that has one entry for each token of a text; None if it has none.
    """

    sizes: tuple[int, ...]
    dtype: str = "float32"
    text: int | None = None

    @property
    def entry(self) -> str:
        """The items of its mapping in a manifest."""
        dtype = "" if self.dtype == "float32" else f", dtype: {self.dtype}"
        return f"shape: {json.dumps(self.sizes)}{dtype}"

    def range(self, dim: str, longest: int) -> str | None:
        """Its dynamic shape, for texts of many lengths; None if it has none."""
        if self.text is None:
            return None
        sizes = ["null"] * len(self.sizes)
        sizes[self.text] = f"{{dim: {dim}, min: 2, max: {longest}}}"
        return f"[{', '.join(sizes[: self.text + 1])}{', null' * (len(sizes) - self.text - 1)}]"


def of(kind: str, config: dict[str, Any], inputs: ClassInputs) -> dict[str, Input]:
    """The known inputs of a class, by name.

    Args:
        kind: The name of the class.
        config: The content of `config.json`.
        inputs: The inputs of the class.
    """
    words, (_, of_main) = _words(config), inputs.documented.get(inputs.main, ("", ()))
    length = next((word for word in of_main if word.endswith(_LENGTHS)), None)  # other lengths are not of the text
    found = {name: _of_words(dtype, sizes, words, length) for name, (dtype, sizes) in inputs.documented.items()}
    return {name: each for name, each in found.items() if each is not None} | of_config(kind, config)


def of_config(kind: str, config: dict[str, Any]) -> dict[str, Input]:
    """The inputs whose shape follows from the name and the configuration of a class, by name."""
    words = _words(config)
    tokens, frames = words["sequence_length"], positive(config.get("num_frames"))
    image = Input((1, *([frames] if frames else []), *(words[each] for each in ("num_channels", "height", "width"))))
    choices = [_CHOICES] if kind.endswith("ForMultipleChoice") else []
    found = {
        "input_ids": Input((1, *choices, tokens), "int64", 1 + len(choices)),
        "decoder_input_ids": Input((1, tokens), "int64", 1),
        "bbox": Input((1, tokens, 4), "int64", 1),
        "pixel_values": image,
        "image": image,
        "task_inputs": Input((1, positive(config.get("task_seq_len")) or TEXT), "int64"),
        "input_values": Input((1, 16000)),
    }
    bins, length = positive(config.get("num_mel_bins")), positive(config.get("max_length"))
    if bins and length:  # a spectrogram, such as that of AST
        found["input_values"] = Input((1, length, bins))
    past, count = positive(config.get("context_length")), positive(config.get("num_input_channels"))
    if past and count:
        found["past_values"] = Input((1, past, count))
    return found


def own_shaped(known: dict[str, Input], inputs: ClassInputs) -> list[str]:
    """The inputs beside the main one that the processors of a class give, with a shape of their own. If one with
    a number for each token is left out, such as the kinds of tokens, a class takes those of a single text."""
    mains = ("input_ids", "decoder_input_ids", inputs.main)
    names = [name for name in inputs.given if name in known and is_data(name) and name not in mains]
    return [name for name in names if known[name].sizes != known["input_ids"].sizes]


def all_documented(known: dict[str, Input], inputs: ClassInputs) -> list[str]:
    """The names of all inputs of a class whose shape its docstring says, without those for training."""
    return [name for name in inputs.documented if name in known and is_data(name)]


def is_data(name: str) -> bool:
    """Whether an input holds something to compute with, and not what trains a model, hides inputs or replaces them."""
    return not name.endswith(_NO_DATA) and "label" not in name


def _words(config: dict[str, Any]) -> dict[str, int]:
    """The sizes that words stand for: those of an image and of a text, and the numbers of the configuration."""
    text, vision = ({**config, **(each if isinstance(each := config.get(key), dict) else {})} for key in _NESTED)
    numbers = {key: value for key, value in {**vision, **text}.items() if positive(value)}
    found = image_size.of_config(config) or image_size.of_backbone(config) or image_size.of_processor({})
    height, width = found
    own = {"height": height, "width": width, "image_size": height, "num_channels": image_size.channels(config)}
    return {**numbers, **own, "sequence_length": min(TEXT, longest_text(text))}


def _of_words(dtype: str, words: tuple[str, ...], sizes: dict[str, int], length: str | None) -> Input | None:
    """An input of the words for its sizes; None if one is not known. `length` is the word for that of a text."""
    found = [_size(word, sizes) for word in words]
    known = tuple(each for each in found if each is not None)
    text = words.index(length) if length in words else None
    return Input(known, dtype, text) if len(known) == len(words) > 0 else None


def _size(word: str, sizes: dict[str, int]) -> int | None:
    """The size that a word of a docstring stands for; None if it is not known."""
    if word.isdigit():
        return int(word)
    if word in _BATCH:
        return 1
    key = word.removeprefix("config.")
    of_image = next((side for side in ("height", "width") if key.endswith(side)), None)
    return sizes.get(key, sizes.get(of_image or "", sizes["sequence_length"] if key.endswith(_LENGTHS) else None))
