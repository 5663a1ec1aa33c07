"""Workarounds for XNNPACK: see `etbuild.workarounds.OfBackend`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from etplugins.upstream.xnnpack_cycles import no_cycles
from etplugins.upstream.xnnpack_graphs import corrected_graphs
from etplugins.upstream.xnnpack_layouts import corrected_layouts
from etplugins.upstream.xnnpack_operators import corrected_operators


@contextmanager
def around(partitioners: Mapping[str, Sequence[Any]]) -> Iterator[None]:
    """A context in which XNNPACK makes programs that the runtime loads and that compute correct numbers."""
    with corrected_operators(partitioners), corrected_layouts(), corrected_graphs(), no_cycles():
        yield
