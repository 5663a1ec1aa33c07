"""Writes to parts of values. A change of a graph that copies a value must not part it from what is written to it."""

from __future__ import annotations

from collections import defaultdict
from operator import getitem

from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from etbuild.errors import BuildError, DocumentPath, Problem


class LostWrite(BuildError):
    """A write would be lost."""


def writes(node: Node) -> bool:
    """Whether an operator writes to one of its inputs."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def may_view(node: Node) -> bool:
    """Whether an operator may return its first input, or a view of it."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)


def changing(graph: Graph) -> set[Node]:
    """The nodes whose values depend on tensors of the module that the graph writes to: they change between calls."""
    roots = set()
    for node in filter(writes, graph.nodes):
        for given, value in zip(node.target._schema.arguments, node.args, strict=False):
            if given.alias_info is not None and given.alias_info.is_write and isinstance(value, Node):
                while value.op == "call_function" and may_view(value) and isinstance(value.args[0], Node):
                    value = value.args[0]
                roots.add(value.target if value.op == "get_attr" else value)
    found: set[Node] = set()
    for node in graph.nodes:
        if (
            node in roots
            or (node.op == "get_attr" and node.target in roots)
            or not found.isdisjoint(node.all_input_nodes)
        ):
            found.add(node)
    return found


def check_writes(copy: Node, source: Node, path: DocumentPath | None = None) -> None:
    """Fails if a value or its copy is read after a write to the other, which must have the same content then.

    Args:
        copy: A node that becomes a copy of the value, or of a part of it.
        source: The node of the value.
        path: The document path of what changes the graph, if it is known.

    Raises:
        LostWrite: There is such a write.
    """
    while _passes(source) and isinstance(source.args[0], Node):
        source = source.args[0]
    copied = _views(copy)
    others = _views(source) - copied
    for written, read in ((copied, others), (others, copied)):
        for write in (each for each in written if copy < each and writes(each)):
            if any(write < user for each in read for user in each.users if user not in copied):
                raise _lost(write, path)


def check_observed(graph: Graph, path: DocumentPath) -> None:
    """Fails if a write would be lost because each reader of an observed value gets a copy of the value.

    Args:
        graph: A graph with observers, which `convert_pt2e` has not changed yet.
        path: The document path of the quantizers.

    Raises:
        LostWrite: There is such a write.
    """
    tensors = _Tensors(graph)
    for write in filter(writes, graph.nodes):
        if any(tensors.loses(write, target) for target in _written(write)):
            raise _lost(write, path)


class _Tensors:
    """The tensors that the nodes of a graph have after `convert_pt2e`, by the nodes that make them."""

    def __init__(self, graph: Graph) -> None:
        self._owner: dict[Node, Node] = {}  # what has the memory in the model: a node, or the first reader of a buffer
        self._tensor: dict[Node, Node] = {}
        self._observer: dict[Node, Node] = {}  # what fills a tensor that is a copy
        self._nodes: dict[Node, list[Node]] = defaultdict(list)
        self._parts: dict[Node, dict[Node, object]] = {}  # which results of operators such as `split` a node is in
        buffers: dict[str, Node] = {}
        for node in graph.nodes:
            source = node.args[0] if _passes(node) else None
            if not isinstance(source, Node):
                first = buffers.setdefault(str(node.target), node) if node.op == "get_attr" else node
                self._owner[node] = self._tensor[node] = first
                self._parts[node] = {}
            else:
                part = {source: node.args[1]} if node.target is getitem else {}
                self._parts[node] = {**self._parts[source], **part}
                self._owner[node] = self._owner[source]
                observer = next((each for each in (node, source) if each.op == "call_module"), None)
                self._tensor[node] = node if observer is not None else self._tensor[source]
                if observer is not None:
                    self._observer[node] = observer
            self._nodes[self._owner[node]].append(node)

    def loses(self, write: Node, target: Node) -> bool:
        """Whether something that contains what is written to a node in the model does not contain it then."""
        owner = self._owner[target]
        written = write if target.op == "call_module" else self._tensor[target]
        if owner.op == "get_attr" and not self._has(owner, write, written):
            return True  # the next call reads it
        return any(
            write < user and (writes(user) or not _passes(user)) and not self._has(self._tensor[node], write, written)
            for node in self._nodes[owner]
            if not self._are_apart(node, target)
            for user in node.users
        )

    def _are_apart(self, one: Node, other: Node) -> bool:
        """Whether two nodes are different results of an operator such as `split`."""
        parts = self._parts[other]
        return any(parts.get(split, index) != index for split, index in self._parts[one].items())

    def _has(self, tensor: Node, write: Node, written: Node) -> bool:
        """Whether a tensor contains what is written to another one."""
        while tensor is not written:
            observer = self._observer.get(tensor)
            if observer is None or observer < write:
                return False
            tensor = self._tensor[observer.all_input_nodes[0]]
        return True


def _written(write: Node) -> list[Node]:
    """The values that an operator writes to."""
    given = zip(write.target._schema.arguments, write.args, strict=False)
    found = [value for each, value in given if each.alias_info is not None and each.alias_info.is_write]
    return [value for value in pytree.tree_leaves(found) if isinstance(value, Node)]


def _lost(write: Node, path: DocumentPath | None) -> LostWrite:
    message = f"`{write.target}` writes to a value that is read later: quantizing would lose the write"
    hint = "make a new value in the model, for example with `y = y * 2`, `torch.where` or `torch.cat`"
    return LostWrite([Problem(message, path, hint)])


def _views(node: Node) -> set[Node]:
    """A value and its views."""
    found, left = {node}, [node]
    while left:
        for user in left.pop().users:
            if user not in found and user.args and user.args[0] in found and _passes(user):
                found.add(user)
                left.append(user)
    return found


def _passes(node: Node) -> bool:
    """Whether a node may return its first input, or a view of it: as an operator, an observer, or one of the views
    that an operator returns."""
    if node.target is getitem:
        return may_view(node.all_input_nodes[0])
    return node.op == "call_module" or (node.op == "call_function" and may_view(node))
