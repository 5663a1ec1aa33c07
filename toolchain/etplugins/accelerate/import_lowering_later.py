"""Imports what writes a program without what lowers methods.

`serialize_for_executorch` needs the schema of a program and a few helpers. But `executorch.exir` imports everything in
its `__init__`, and `_serialize.py` imports all passes and the emitter for the types of two arguments. This takes two
seconds when only weights are new.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from etplugins.accelerate.import_later import import_later

_PACKAGES = ("executorch.exir", "executorch.exir.emit", "executorch.exir.operator")
_TREES = (
    *("executorch.exir.capture", "executorch.exir.delegate", "executorch.exir.dialects", "executorch.exir.passes"),
    *("executorch.exir.operator.convert", "executorch.exir.print_program", "executorch.exir.sym_util"),
    *("torch._dynamo", "torch._inductor"),
)
_NEEDED = ("torch._dynamo.variables.streams",)


def import_lowering_later() -> AbstractContextManager[None]:
    """Returns a context manager in which the parts of ExecuTorch that lower methods wait until something uses them."""
    return import_later(_PACKAGES, _TREES, _NEEDED)
