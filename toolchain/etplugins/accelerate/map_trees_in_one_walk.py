"""Maps a function over nested arguments in one walk, without a description of their structure.

`tree_map` flattens a tree into a list and a `TreeSpec`, and builds a new tree from both. Passes call it twice for each
node, interpreters and modes for each operator. Almost all of these trees are a tuple of leaves. Here, the walk that
finds the leaves builds the new tree. `tree_iter`, which looks at the arguments of each new node, has a generator for
each leaf. Here, it has a list of all leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import _pytree as pytree

from etbuild.patching import replaced

_tree_map, _tree_iter, _NODES = pytree.tree_map, pytree.tree_iter, pytree.SUPPORTED_NODES


def _map(function: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
    """Replaces `tree_map`. Calls the function for the leaves in the same order."""
    if rests or is_leaf is not None:
        return _tree_map(function, tree, *rests, is_leaf=is_leaf)
    return _mapped(function, tree)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    cls = type(tree)
    if cls is tuple:
        return tuple([_mapped(function, child) for child in tree])
    if issubclass(cls, tuple):  # named tuples are nodes, even if they are not registered
        return _tree_map(function, tree)
    node = _NODES.get(cls)
    if node is None:
        return function(tree)
    children, context = node.flatten_fn(tree)
    return node.unflatten_fn([_mapped(function, child) for child in children], context)


def _iterate(tree: Any, is_leaf: Any = None) -> Iterator[Any]:
    """Replaces `tree_iter`."""
    if is_leaf is not None:
        return iter(_tree_iter(tree, is_leaf=is_leaf))
    leaves: list[Any] = []
    _add_leaves(tree, leaves)
    return iter(leaves)


def _add_leaves(tree: Any, leaves: list[Any]) -> None:
    cls = type(tree)
    if cls is tuple:
        for child in tree:
            _add_leaves(child, leaves)
    elif issubclass(cls, tuple):
        leaves.extend(_tree_iter(tree))
    elif (node := _NODES.get(cls)) is None:
        leaves.append(tree)
    else:
        for child in node.flatten_fn(tree)[0]:
            _add_leaves(child, leaves)


@contextlib.contextmanager
def map_trees_in_one_walk() -> Iterator[None]:
    """Returns a context manager in which PyTorch maps and iterates over trees in one walk."""
    with replaced(pytree, "tree_map", _map), replaced(pytree, "tree_iter", _iterate):
        yield
