"""Reads how long speech is for a model, from its configuration and that of its feature extractor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from etkit.authoring.first_manifest.files import positive

_SECONDS, _PARTS, _RATE = 10, 10, 16000  # the longest sound lasts 10 s, the shortest one a tenth of a second; Hz

_FRAME_OF_MOONSHINE = 384  # samples: its convolutions have strides of 64, 3 and 2


@dataclass(frozen=True)
class Length:
    """The lengths of sounds that a first manifest has.

    Attributes:
        shortest: The length of a tenth of a second.
        longest: The length of ten seconds.
        unit: `samples`, or `frames` of features.
        step: A number that divides each length.
        frame: The samples for each vector of an encoder with a decoder; None for another model.
    """

    shortest: int
    longest: int
    unit: str
    step: int = 1
    frame: int | None = None

    @property
    def is_waveform(self) -> bool:
        """Whether a sound has a number for each moment: [1, samples], and not [1, frames, features]."""
        return self.unit == "samples"


def of(config: dict[str, Any], extractor: dict[str, Any]) -> Length | None:
    """The lengths of sounds; None if the configuration is not of a kind that is known here.

    Args:
        config: The content of the model's `config.json`.
        extractor: The content of `preprocessor_config.json`; empty if there is none.
    """
    rate = positive(extractor.get("sampling_rate")) or _RATE
    nested = config.get("encoder_config")
    if isinstance(nested, dict) and "num_mel_bins" in nested:
        return _length(rate, positive(extractor.get("hop_length")) or rate // 100, "frames")
    if "feature_projection_input_dim" in config:
        return _length(rate, rate // 100 * (positive(extractor.get("stride")) or 2), "frames")
    if config.get("model_type") == "moonshine":
        return replace(_length(rate, 1, "samples"), frame=_FRAME_OF_MOONSHINE)
    if config.get("model_type") == "moonshine_streaming":
        return _of_streaming(config.get("encoder_config"))
    return _length(rate, 1, "samples") if "conv_dim" in config else None


def _of_streaming(encoder: object) -> Length | None:
    """The lengths for Moonshine streaming, whose encoder has a vector for four frames; None if the length of a
    frame is not known."""
    settings = encoder if isinstance(encoder, dict) else {}
    rate, milliseconds = settings.get("sample_rate", _RATE), settings.get("frame_ms", 5.0)
    if not positive(rate) or type(milliseconds) not in (int, float) or not 0 < milliseconds < _SECONDS * 1000:
        return None
    frame = 4 * round(rate * milliseconds / 1000)
    shortest, longest = (count // frame * frame for count in (rate // _PARTS, _SECONDS * rate))
    return Length(max(frame, shortest), longest, "samples", step=frame, frame=frame)


def _length(rate: int, step: int, unit: str) -> Length:
    """The lengths in steps of a number of samples."""
    return Length(max(1, rate // _PARTS // step), _SECONDS * rate // step, unit)
