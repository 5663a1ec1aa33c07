"""Traces without looking up where in Python each node was made.

`torch.fx` notes the stack of Python for each node that has no stack trace yet, and keeps it only if it contains a
`forward` of a model. When a method is lowered, its model does not run: the stacks are those of PyTorch and ExecuTorch.
Exports have no stack traces either, and no program has one (`emit_stacktrace` is refused). Nodes of other people's
`.pt2` files keep theirs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch.fx

from etbuild.patching import replaced


def no_stack_traces() -> AbstractContextManager[None]:
    """Returns a context manager in which traced nodes get no stack trace of their own."""
    return replaced(torch.fx.config, "do_not_emit_stack_traces", True)
