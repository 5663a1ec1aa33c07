"""The types of a manifest's data: `make reference` writes them from `etplugins.quantize.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import BackendEntry, Options


class Torchao(TypedDict, total=False):
    """Data of `etplugins.quantize.parts.TorchaoEntry`."""

    config: str
    modules: list[str]
    layers: list[str]
    group_size: int | None
    kwargs: Options
    scales: str
    fitting: bool


class Calibration(TypedDict, total=False):
    """Data of `etplugins.quantize.parts.CalibrationData`."""

    file: str
    keys: list[str]
    factory: str
    kwargs: Options


class QuantizePasses(TypedDict, total=False):
    """Data of `etplugins.quantize.parts.QuantizePasses`."""

    pre_prepare: list[str]
    post_prepare: list[str]
    pre_convert: list[str]
    post_convert: list[str]


class Pt2e(TypedDict, total=False):
    """Data of `etplugins.quantize.parts.Pt2e`."""

    quantizers: list[str | BackendEntry]
    calibration: str | Calibration
    qat: str
    passes: QuantizePasses


class Quantize(TypedDict, total=False):
    """Data of `etplugins.quantize.parts.Quantize`."""

    torchao: list[Torchao]
    pt2e: Pt2e


class Io(TypedDict, total=False):
    """Data of `etplugins.quantize.parts.Io`."""

    inputs: str | None
    outputs: str | None
