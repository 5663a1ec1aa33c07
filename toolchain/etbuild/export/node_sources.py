"""What the nodes of a graph say about where they come from: lines of sources, earlier nodes, modules and weights.

By default, torch.export records only the lines of functions called `forward`, but not those of their helpers and other
entries: `lines_recorded` adds these. The lines go to `inputs/source_lines.py`, and not into an export.

A node's `from_node`, its provenance, lists its earlier nodes: their names, their targets and the `id` of their graphs.
ExecuTorch numbers nodes by the name and graph of the first entry, and XNNPACK writes these numbers into programs. Saved
exports contain the entries too. `graphs_numbered` and `remove_addresses` keep memory addresses out of them: these
differ in each process.

In a strict export, TorchDynamo names a module by its address, and a weight by the traced code's path to it.
`restore_names` gives both the names that they have in a non-strict export.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument
from torch.fx.proxy import TracerBase
from torch.fx.traceback import NodeSource

from etbuild.inputs.user_code import active_finder
from etbuild.patching import replaced

_FILTER = "_filter_traceback_frames"  # torch: "can be overridden to customize the frame filtering logic"


@contextlib.contextmanager
def lines_recorded() -> Iterator[None]:
    """Lets torch.export record the lines of all declared sources within this context."""
    filtered = getattr(TracerBase, _FILTER, None)
    if filtered is None:  # other releases of torch
        yield
        return
    finder = active_finder()
    is_source = functools.cache(lambda file: finder.name_of(file) is not None)

    def with_sources(self: TracerBase, stack: traceback.StackSummary) -> traceback.StackSummary:
        usual = {_place(frame) for frame in filtered(self, stack)}
        return traceback.StackSummary.from_list(
            [frame for frame in stack if is_source(frame.filename) or _place(frame) in usual]
        )

    with replaced(TracerBase, _FILTER, with_sources):
        yield


_place = operator.attrgetter("filename", "lineno", "name")  # frames with an equal place are equal
_FIRST = 1 << 32  # above all numbers in a saved export: `remove_addresses` starts at 0
# In the text of an object, such as `<built-in method conv2d of type object at 0x7f4d0d0cea40>`.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@contextlib.contextmanager
def graphs_numbered() -> Iterator[None]:
    """Identifies graphs by numbers instead of addresses in each `NodeSource` that is made within this context.

    In some processes, Python reuses the address of a deleted graph for a later one. ExecuTorch would then take nodes of
    both graphs for one.
    """
    numbers: WeakKeyDictionary[torch.fx.Graph, int] = WeakKeyDictionary()
    following = itertools.count(_FIRST)
    original = NodeSource.__init__

    def initialize(self: NodeSource, node: torch.fx.Node | None, *arguments: Any, **named: Any) -> None:
        original(self, node, *arguments, **named)
        if node is not None and self.node_info is not None:
            if node.graph not in numbers:
                numbers[node.graph] = next(following)
            self.node_info.graph_id = numbers[node.graph]

    with replaced(NodeSource, "__init__", initialize):
        yield


def remove_addresses(graph_module: torch.fx.GraphModule) -> None:
    """Replaces graph numbers and addresses in the provenance of a method's nodes.

    A graph in which a chain of provenance begins gets a number, in the order of the nodes. Nothing reads the numbers of
    other graphs: they get -1. In a strict export, the text of a target holds the address of a function.
    """
    numbers: dict[int, int] = {}
    seen: dict[int, NodeSource] = {}  # nodes may share sources
    children = [child for child in graph_module.modules() if isinstance(child, torch.fx.GraphModule)]
    waiting = [source for child in children for node in child.graph.nodes for source in node.meta.get("from_node", ())]
    waiting.reverse()
    while waiting:
        source = waiting.pop()
        if id(source) in seen:
            continue
        seen[id(source)] = source
        source._dict = None  # clears the cache of `to_dict`
        if source.node_info is not None:
            first = not source.from_node
            source.node_info.graph_id = numbers.setdefault(source.graph_id, len(numbers)) if first else -1
            source.node_info.target = _ADDRESS.sub("", source.target)
        waiting += reversed(source.from_node)


Spec = TypeVar("Spec", InputSpec, OutputSpec)
_PREFIXES = {InputKind.PARAMETER: "p_", InputKind.BUFFER: "b_", InputKind.CONSTANT_TENSOR: "c_"}  # torch.export's


def restore_names(program: ExportedProgram, module: torch.nn.Module, root: torch.nn.Module) -> None:
    """Renames weights and modules in a program by their names in the module.

    Args:
        program: The result of a strict export. It is changed in place.
        module: The module.
        root: The exported module: `module`, or the root that calls its entry.
    """
    names = {str(id(child)): name for name, child in (*module.named_modules(), ("", root))}
    numbers: dict[str, str] = {}
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in graph_module.graph.nodes:
                stack = node.meta.get("nn_module_stack")
                if stack:
                    node.meta["nn_module_stack"] = dict(_stack_entry(names, numbers, *entry) for entry in stack.items())
    _name_inputs(program)


def _stack_entry(
    names: dict[str, str], numbers: dict[str, str], key: str, entry: tuple[str, Any]
) -> tuple[str, tuple[str, Any]]:
    """An entry of `nn_module_stack` in the form of a non-strict export: a key, and the path and class of a module.

    Args:
        names: The names of modules by their ids. The ids are strings.
        numbers: The numbers of modules without a name, such as modules in lists. New ones are added.
        key: TorchDynamo's key of the module.
        entry: TorchDynamo's path and class of the module.
    """
    if key not in names:
        return numbers.setdefault(key, str(len(numbers))) if key.isdigit() else key, entry
    path = names[key]
    return "__".join(["L", "self", path.replace(".", "_")]), (path, entry[1])


def _name_inputs(program: ExportedProgram) -> None:
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    renamed: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        new_name = f"{_PREFIXES.get(spec.kind, '')}{re.sub('[^a-zA-Z0-9]', '_', spec.target or '')}"
        if spec.kind in _PREFIXES and spec.arg.name != new_name:
            node = inputs[spec.arg.name]
            node._rename(new_name)
            node.target = node.name
            renamed[spec.arg.name] = node.name
    if renamed:
        signature = program.graph_signature
        program._graph_signature = ExportGraphSignature(
            [_renamed(spec, renamed) for spec in signature.input_specs],
            [_renamed(spec, renamed) for spec in signature.output_specs],
        )
        program.graph_module.recompile()


def _renamed(spec: Spec, names: dict[str, str]) -> Spec:
    return replace(spec, arg=TensorArgument(names[spec.arg.name])) if spec.arg.name in names else spec
