"""Reads how long ten seconds of speech are for a model, from its configuration and that of its feature extractor."""

from __future__ import annotations

from typing import Any

_SECONDS, _RATE = 10, 16000


def length(config: dict[str, Any], extractor: dict[str, Any]) -> tuple[int, str] | None:
    """The length of a sound and its unit; None if the configuration is not of a kind that is known here.

    Args:
        config: The content of the model's `config.json`.
        extractor: The content of `preprocessor_config.json`; empty if there is none.
    """
    rate = _number(extractor.get("sampling_rate")) or _RATE
    nested = config.get("encoder_config")
    if isinstance(nested, dict) and "num_mel_bins" in nested:
        return _SECONDS * rate // (_number(extractor.get("hop_length")) or rate // 100), "frames"
    if "feature_projection_input_dim" in config:
        return _SECONDS * rate // (rate // 100 * (_number(extractor.get("stride")) or 2)), "frames"
    if "conv_dim" in config or config.get("model_type") == "moonshine":
        return _SECONDS * rate, "samples"
    return None


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 31 else None
