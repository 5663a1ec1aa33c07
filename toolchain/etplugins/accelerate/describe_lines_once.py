"""Describes each line of the stack once, instead of once for each node that is traced below it.

For each node of a graph, torch reads the whole stack of Python, some hundred frames, with the text of each line. Then
it keeps the few frames that belong to a model. This takes a quarter of an export. Nearly all frames of a node are also
those of the node before it.

Here a line has one description, which all stacks share. Its text is read when it is written to a node. A description
never changes, and the text of a line does not change during an export. Nodes for inputs and outputs get no stack where
torch removes it again.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from traceback import FrameSummary, StackSummary
from types import CodeType, FrameType

from torch.fx import proxy
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

from etbuild.patching import replaced

_NO_LINE = 2**64 - 1  # torch's number for an instruction that belongs to no line: -1 without a sign


class _Lines:
    """Replaces `CapturedTraceback`, of which torch calls `extract().summary()`."""

    def __init__(self) -> None:
        # By the identity of code: to hash it takes longer. The code is kept, so that no other gets the same identity.
        self._described: dict[tuple[int, int], tuple[CodeType, FrameSummary]] = {}

    def extract(self) -> _Lines:
        return self

    def summary(self) -> StackSummary:
        """The stack of the caller, the outermost frame first."""
        frame: FrameType | None = sys._getframe(1)
        stack = StackSummary()
        if frame is not None and _is_removed(frame):
            return stack
        while frame is not None:
            line: int | None = frame.f_lineno
            stack.append(self._describe(frame.f_code, _NO_LINE if line is None else line))
            frame = frame.f_back
        stack.reverse()
        return stack

    def _describe(self, code: CodeType, line: int) -> FrameSummary:
        key = id(code), line
        if key not in self._described:
            frame = FrameSummary(code.co_filename, line, code.co_name, lookup_line=False)
            self._described[key] = code, frame
        return self._described[key][1]


def _is_removed(frame: FrameType) -> bool:
    """Whether a frame is `TracerBase.create_node`, and `PythonKeyTracer.create_node` removes the stack of its node."""
    values = frame.f_locals
    return values.get("kind") in ("placeholder", "output") and isinstance(values.get("self"), PythonKeyTracer)


def describe_lines_once() -> AbstractContextManager[None]:
    """Returns a context manager in which traced nodes share the descriptions of their lines."""
    return replaced(proxy, "CapturedTraceback", _Lines())
