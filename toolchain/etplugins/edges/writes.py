"""Writes to parts of values. A change of a graph that copies a value must not part it from what is written to it."""

from __future__ import annotations

from torch.fx import Graph, Node

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
                message = f"`{write.target}` writes to a part of a value that is read later: quantizing would lose it"
                hint = "make a new value in the model, for example with `torch.where` or `torch.cat`"
                raise LostWrite([Problem(message, path, hint)])


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
    """Whether a node may return its first input, or a view of it: as an operator, or as an observer."""
    return node.op == "call_module" or (node.op == "call_function" and may_view(node))
