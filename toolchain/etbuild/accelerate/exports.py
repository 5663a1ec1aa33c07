"""The switches for exports."""

from __future__ import annotations

from contextlib import AbstractContextManager

from etbuild.accelerate.switches import entered


def exporting() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.export` is faster."""
    return entered(["compile_on_demand", "cache_quantization"])


def saving() -> AbstractContextManager[None]:
    """Returns a context manager in which `torch.export.save` is faster."""
    return entered(["save_without_canonical_form"])


def quantizing() -> AbstractContextManager[None]:
    """Returns a context manager in which methods are quantized faster."""
    return entered(["annotate_where_possible"])
