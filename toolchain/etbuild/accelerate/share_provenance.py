"""Shares the provenance of a node with the node that replaces it, instead of copying it.

Every pass replaces each node by a new one with a `NodeSource`. This deep-copies the `NodeSource` of the old node, which
contains those of all earlier passes, so the cost of a pass grows with the number of passes before it. A `NodeSource`
never changes after its creation, so sharing the object is equal to copying it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.fx.traceback import NodeSource

from etbuild.patching import replaced


def _itself(source: NodeSource, memo: dict[int, Any]) -> NodeSource:
    del memo
    return source


def share_provenance() -> AbstractContextManager[None]:
    """Returns a context manager in which deep-copying a `NodeSource` returns the object itself."""
    return replaced(NodeSource, "__deepcopy__", _itself)
