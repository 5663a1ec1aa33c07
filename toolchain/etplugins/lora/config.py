"""Reads the configuration of a LoRA adapter, as PEFT writes it: the layers that the adapter changes, and how."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from etbuild import json_schema
from etbuild.errors import DocumentPath, InputError, Problem, printable
from etbuild.inputs.checkpoints import read_json
from etbuild.inputs.given import Given
from etplugins.lora.time_limit import time_limit

ALL_LINEAR = "all-linear"
_SCHEMA = Path(__file__).with_name("adapter-config.schema.json")
N = TypeVar("N", int, float)
_MATCHING = 10.0  # seconds; matching all layers of a large model takes milliseconds
_LONGEST = 10_000  # characters of a regular expression: compiling a long one takes gigabytes
_SHOWN = 100

_INFO_KEYS = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
_TRAINING_KEYS = {"corda_config", "eva_config", "lora_dropout", "lora_ga_config", "loftq_config", "runtime_config"}
_MERGING_KEYS = {"fan_in_fan_out", "megatron_core", "qalora_group_size"}  # without effect unless other keys are set
_HARMLESS_KEYS = _INFO_KEYS | _TRAINING_KEYS | _MERGING_KEYS
_HARMLESS_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the weights of the model unchanged. Other values change them."""


@dataclass(frozen=True)
class AdapterConfig:
    """PEFT's configuration of an adapter.

    Attributes:
        rank: The rank for layers that `ranks` does not match.
        alpha: The numerator of the factor for layers that `alphas` does not match.
        square_root: Whether the denominator of the factor is the square root of the rank, and not the rank.
        targets: The changed layers: names or ends of names, a regular expression for whole names, or `all-linear`.
        excluded: The target layers that stay unchanged, in the same form; None for none.
        ranks: Ranks by regular expressions for the ends of names.
        alphas: Numerators by regular expressions for the ends of names.
    """

    rank: int
    alpha: float
    square_root: bool
    targets: list[str] | str
    excluded: list[str] | str | None
    ranks: dict[str, int]
    alphas: dict[str, float]

    def changed_layers(self, layers: Iterable[str], file: str, path: DocumentPath) -> list[str]:
        """The layers that the adapter changes.

        Args:
            layers: The names of all layers.
            file: The name of the configuration's file.
            path: The document path that names it.

        Raises:
            InputError: Matching a regular expression takes too long. PEFT has no limit.
        """
        try:
            with time_limit(_MATCHING):
                changed = [layer for layer in layers if layer and self.changes(layer)]
                for layer in changed:
                    self.factor_of(layer)
        except TimeoutError as error:
            hint = "write the names of the layers as a list, or a simpler regular expression"
            message = f"`{file}`: cannot find the layers of its regular expressions: {error}"
            raise InputError.at(path, message, hint) from None
        return changed

    def changes(self, layer: str) -> bool:
        """Whether the adapter changes the layer with this name. With `all-linear`, also check its class."""
        if self.excluded and _fits(layer, self.excluded):
            return False
        return self.targets == ALL_LINEAR or _fits(layer, self.targets)

    def rank_of(self, layer: str) -> int:
        """The rank of a layer's adapter."""
        return _matching_value(layer, self.ranks, self.rank)

    def factor_of(self, layer: str) -> float:
        """The factor for the output of a layer's adapter."""
        rank = self.rank_of(layer)
        return _matching_value(layer, self.alphas, self.alpha) / (math.sqrt(rank) if self.square_root else rank)


def _fits(layer: str, patterns: list[str] | str) -> bool:
    if isinstance(patterns, str):
        return re.fullmatch(patterns, layer) is not None
    return any(layer == name or layer.endswith(f".{name}") for name in patterns)


def _matching_value(layer: str, values: Mapping[str, N], otherwise: N) -> N:
    """The value of the first pattern that matches the end of a name."""
    matching = (value for pattern, value in values.items() if re.fullmatch(rf"(.*\.)?({pattern})", layer))
    return next(matching, otherwise)


def read(file: str, path: DocumentPath, inputs: Given) -> AdapterConfig:
    """Reads a configuration.

    Args:
        file: The name of the declared input.
        path: The document path that names it.
        inputs: The declared inputs.

    Raises:
        InputError: The file cannot be read, is something else, or asks for more than LoRA of linear layers.
    """
    content = read_json(file, path, inputs)
    schema_problems = json_schema.problems(_SCHEMA, content, most=1)
    if schema_problems:
        message = f"`{file}` is not the configuration of a LoRA adapter: {schema_problems[0].on_one_line()}"
        raise InputError.at(path, message)
    targets = content["target_modules"]
    config = AdapterConfig(
        rank=content.get("r", 8),
        alpha=content.get("lora_alpha", 8),
        square_root=bool(content.get("use_rslora")),
        targets=ALL_LINEAR if isinstance(targets, str) and targets.lower() == ALL_LINEAR else targets,
        excluded=content.get("exclude_modules"),
        ranks=content.get("rank_pattern") or {},
        alphas=content.get("alpha_pattern") or {},
    )
    problems = [Problem(f"`{file}`: {message}", path, hint) for message, hint in _problems(content, config)]
    InputError.raise_if(problems)
    return config


_READ_KEYS = {"alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "lora_alpha", "peft_type", "r"}
_READ_KEYS |= {"rank_pattern", "target_modules", "use_rslora"}


def _problems(content: dict[str, object], config: AdapterConfig) -> list[tuple[str, str | None]]:
    """The parts of a configuration that the driver does not support, as messages with hints."""
    problems: list[tuple[str, str | None]] = []
    if content.get("bias") not in (None, "none"):
        problems.append(
            (f"`bias: {_short(content['bias'])}` also changes the model's own biases", 'train with `bias="none"`')
        )
    start = content.get("init_lora_weights")
    if start not in _HARMLESS_STARTS:
        hint = "convert the adapter with PEFT: `save_pretrained(..., path_initial_model_for_weight_conversion=...)`"
        problems.append((f"`init_lora_weights: {_short(start)}` also changes the model's own weights", hint))
    for key in sorted(content.keys() - _READ_KEYS - _HARMLESS_KEYS):
        if content[key] is not None and content[key] is not False and content[key] not in ("", [], {}):
            hint = "merge such an adapter into the model's weights with PEFT's `merge_and_unload`"
            problems.append((f"`{_short(key)}` asks for something else than LoRA of linear layers", hint))
    patterns = {
        "target_modules": config.targets,
        "exclude_modules": config.excluded,
        **{f"rank_pattern.{end}": f"(.*\\.)?({end})" for end in config.ranks},
        **{f"alpha_pattern.{end}": f"(.*\\.)?({end})" for end in config.alphas},
    }
    for key, pattern in patterns.items():
        if isinstance(pattern, str) and len(pattern) > _LONGEST:
            problems.append(
                (f"`{_short(key)}` has {len(pattern):,} characters, and at most {_LONGEST:,} are read", None)
            )
            continue
        try:
            re.compile(pattern if isinstance(pattern, str) else "")
        except (re.error, OverflowError, RecursionError) as error:
            problems.append((f"`{_short(key)}` is not a regular expression: {_short(error)}", None))
    return problems


def _short(value: object) -> str:
    """A value of the file on one line, for a message."""
    return printable(" ".join(str(value)[:_SHOWN].split()))
