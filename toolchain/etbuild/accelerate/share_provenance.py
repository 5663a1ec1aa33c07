"""Shares what a node came from with the node that is made of it, instead of copying it.

Every pass makes a new node of each old one and gives it a `NodeSource`, which deep-copies the old node's, which holds
that of the node before: the cost of a pass grows with the number of passes before it. Nothing changes a `NodeSource`
once it is made, so that one object says the same as its copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.fx.traceback import NodeSource

from etbuild.patching import replaced


def _itself(source: NodeSource, memo: dict[int, Any]) -> NodeSource:
    del memo
    return source


@contextlib.contextmanager
def share_provenance() -> Iterator[None]:
    """Node sources are not copied inside."""
    with replaced(NodeSource, "__deepcopy__", _itself):
        yield
