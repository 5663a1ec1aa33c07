"""Lets torch.export record the lines of all functions of the sources.

By default, torch.export records only functions called `forward`, but not their helpers and other entries. The lines go
to `inputs/source_lines.py`, and not into an export.

Limit: `traces-of-helpers`.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Iterator
from typing import Any

from torch.fx.proxy import TracerBase

from etbuild.inputs.user_code import active_finder
from etbuild.patching import replaced

_FILTER = "_filter_traceback_frames"  # torch: "can be overridden to customize the frame filtering logic"


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Lets torch.export record the lines of all declared sources within this context."""
    filtered = getattr(TracerBase, _FILTER, None)
    if filtered is None:  # other releases of torch
        yield
        return
    finder = active_finder()
    is_source = functools.cache(lambda file: finder.name_of(file) is not None)

    def with_sources(self: TracerBase, stack: traceback.StackSummary) -> traceback.StackSummary:
        usual: Any = filtered(self, stack)
        return traceback.StackSummary.from_list(
            [frame for frame in stack if is_source(frame.filename) or frame in usual]
        )

    with replaced(TracerBase, _FILTER, with_sources):
        yield
