"""Writes the structured trace of torch only if somebody asked for it.

torch formats messages for its structured trace, such as the text of a whole graph, when its logger has a handler. A
handler is there from the start. It removes itself at the first message if the user named no directory for the trace
(`TORCH_TRACE`), but steps do not pass messages on to handlers. Here, such a handler is away from the start.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._logging._internal import LazyTraceHandler, trace_log

from etbuild.patching import replaced


def trace_if_asked() -> AbstractContextManager[None]:
    """Returns a context manager in which torch formats no message for a trace that nobody gets."""
    asked = [each for each in trace_log.handlers if not isinstance(each, LazyTraceHandler) or each.root_dir is not None]
    return replaced(trace_log, "handlers", asked)
