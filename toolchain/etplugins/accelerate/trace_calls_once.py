"""Traces equal calls of a method once, when ExecuTorch decomposes operators.

`run_decompositions` runs the method's graph through the modes of PyTorch, to get a new graph. Each call of an operator
becomes a few nodes, which depend on the operator and on the shapes, dtypes and strides of its arguments. The layers of
a model have equal calls.

Here the nodes of the first of equal calls are noted. For each later one, the tracer makes the same nodes again, in
the same order, so that names are the same too. Each gets the provenance of its own call, and each tensor is a new one.

This is done only for arguments without symbolic sizes, in graphs where no operator writes to its arguments, so that
it does not matter which tensors share memory. The exception are the writes to inputs at the end of a functional
graph; calls that read the memory of such an input are traced as before. A call is noted only if all that it made is
understood: nodes of PyTorch's own operators, whose arguments are tensors among the call's arguments, other nodes of
the call, or constants. PyTorch also runs the graph without a tracer, to see which tensors share memory. There, a call
is noted if its result shares none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, TensorMetadata, extract_tensor_metadata
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.export import exported_program
from torch.fx import Graph, Node, Proxy
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, _ProxyTensor, get_proxy_mode
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from etbuild.patching import replaced

_NAMESPACES = {"aten", "quantized_decomposed"}
_STATEFUL = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_LITERALS = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_THE_CALL = {"nn_module_stack", "torch_fn", "source_fn_stack", "from_node", "custom", "stack_trace", "seq_nr"}
_OF_THE_NODE = {"val", "tensor_meta", "original_aten"}

_fields = operator.attrgetter(*(field.name for field in dataclasses.fields(TensorMetadata)))
_run_node = PropagateUnbackedSymInts.run_node


class _Unknown(Exception):
    """A call, or what it made, is not understood."""


class _Written(Exception):
    """A call wrote to an argument, although its schema does not say so."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """A part of a template: the result of one of its own nodes, or a tensor among the arguments of the call."""

    number: int
    is_own: bool


@dataclasses.dataclass(frozen=True)
class _Step:
    """A node that a call makes. Arguments are lists, tuples and dictionaries with places and constants."""

    target: Any
    args: Any
    kwargs: Any
    name: str | None
    meta: dict[str, Any]


class _Run:
    """One run of a graph. Without a tracer, a call is noted only if its result shares no memory with its arguments."""

    def __init__(self, tracer: PythonKeyTracer | None, written: list[Node]) -> None:
        self._tracer = tracer
        self._written = written
        self._templates: dict[Hashable, tuple[list[_Step], Any] | None] = {}
        # By identity. The tensors are kept, so that no other gets the same identity.
        self._kinds: dict[int, tuple[torch.Tensor, Hashable]] = {}

    def call(self, interpreter: PropagateUnbackedSymInts, node: Node) -> Any:
        """The result of a call."""
        args, kwargs = interpreter.fetch_args_kwargs_from_env(node)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        try:
            if self._written:
                self._check_unwritten(interpreter, tensors)
            with torch._C.DisableTorchFunction():  # the tracer has a mode that looks at each attribute of a tensor
                key = node.target, self._described((args, kwargs), {id(each): n for n, each in enumerate(tensors)})
                nodes = [*map(self._node, tensors)] if self._tracer else []
        except _Unknown:
            return _run_node(interpreter, node)
        if (template := self._templates.get(key)) is not None:
            with torch._C.DisableTorchFunction(), interpreter._set_current_node(node):
                return self._repeat(*template, tensors, nodes)
        before, last = [*map(_inner, tensors)], self._tracer and self._tracer.graph._root._prev
        result = _run_node(interpreter, node)
        if any(map(operator.is_not, before, map(_inner, tensors))):
            raise _Written
        if key not in self._templates:
            with torch._C.DisableTorchFunction():
                self._templates[key] = self._noted(last, node, tensors, nodes, result)
        return result

    def _check_unwritten(self, interpreter: PropagateUnbackedSymInts, tensors: list[Any]) -> None:
        """Fails if an argument shares memory with an input that is written at the end."""
        written = {_memory(interpreter.env[node]) for node in self._written if node in interpreter.env}
        if not written.isdisjoint(map(_memory, tensors)):
            raise _Unknown

    def _described(self, value: Any, numbers: dict[int, int]) -> Hashable:
        """A key for arguments. Equal tensors at different places have other keys than different tensors."""
        if value is None:
            return None
        if isinstance(value, _LITERALS):
            return type(value), repr(value) if isinstance(value, float) else value  # 0.0 is not -0.0
        if isinstance(value, (tuple, list)):
            return type(value), tuple([self._described(each, numbers) for each in value])
        if isinstance(value, dict):
            return tuple([(name, self._described(each, numbers)) for name, each in value.items()])
        if type(value) is FunctionalTensor:
            return numbers[id(value)], self._kind(value)
        raise _Unknown

    def _kind(self, tensor: Any) -> Hashable:
        if id(tensor) not in self._kinds:
            inner = _inner(tensor)
            if type(inner) is not FakeTensor or inner.constant is not None or inner._has_symbolic_sizes_strides:
                raise _Unknown
            described = _fields(extract_tensor_metadata(inner))
            if any(isinstance(each, torch.SymInt) for each in described):  # a part of a tensor of unknown size
                raise _Unknown
            self._kinds[id(tensor)] = tensor, (described, tensor.requires_grad)
        return self._kinds[id(tensor)][1]

    def _node(self, tensor: Any) -> Node:
        """The node whose result a tensor is."""
        tracked = self._tracer.tensor_tracker.get(_inner(tensor)) if self._tracer else None
        if tracked is None or tracked.constant is not None:
            raise _Unknown
        node: Node = tracked.proxy.node
        return node

    def _noted(
        self, last: Node | None, call: Node, tensors: list[Any], nodes: list[Node], result: Any
    ) -> tuple[list[_Step], Any] | None:
        """What a call has made: the nodes after the last one before it, and the result. None: it is not understood."""
        places = {node: _Place(number, False) for number, node in reversed([*enumerate(nodes)])}
        positions = {id(tensor): number for number, tensor in enumerate(tensors)}
        steps: list[_Step] = []
        found: list[Any] = []

        def place(leaf: Any) -> Any:
            if id(leaf) in positions:
                return _Place(positions[id(leaf)], False)
            if type(leaf) is not FunctionalTensor or leaf.requires_grad or not _is_simple(_inner(leaf)):
                raise _Unknown
            found.append(places.get(self._node(leaf)) if self._tracer else _inner(leaf))
            return found[-1]

        try:
            made = last and last._next
            while made is not None and made.op != "root":
                steps.append(_step(made, call, places))
                places[made] = _Place(len(steps) - 1, True)
                made = made._next
            noted = pytree.tree_map(place, result)
            if self._tracer and (len({*found}) < len(found) or not all(each and each.is_own for each in found)):
                return None
            if not self._tracer and _share_memory([*map(_inner, tensors), *found]):
                return None
        except _Unknown:
            return None
        return steps, noted

    def _repeat(self, steps: list[_Step], result: Any, tensors: list[Any], nodes: list[Node]) -> Any:
        """Makes the nodes of a template for another call. Returns its result."""
        made: list[Node] = []

        def node_at(value: Any) -> Any:
            if not isinstance(value, _Place):
                return value
            return made[value.number] if value.is_own else nodes[value.number]

        def tensor_at(value: Any) -> Any:
            if isinstance(value, _Place) and not value.is_own:
                return tensors[value.number]
            if isinstance(value, _Place):
                inner = made[value.number].meta["val"]
                tracer.tensor_tracker[inner] = _ProxyTensor(Proxy(made[value.number], tracer), None)
            else:
                inner = _copy(value)
            return FunctionalTensor(torch._to_functional_tensor(inner), mode)

        tracer: Any = self._tracer
        mode: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
        with _disable_current_modes():
            for step in steps:
                if "original_aten" in step.meta:
                    fx_traceback.get_current_meta()["original_aten"] = step.meta["original_aten"]
                args, kwargs = map_aggregate((step.args, step.kwargs), node_at)
                node = tracer.create_node("call_function", step.target, args, kwargs, step.name)
                node.meta["val"] = pytree.tree_map(_copy, step.meta["val"])
                if "tensor_meta" in step.meta:
                    node.meta["tensor_meta"] = step.meta["tensor_meta"]._replace(qparams={})
                made.append(node)
            return pytree.tree_map(tensor_at, result)


def _step(made: Node, call: Node, places: dict[Node, _Place]) -> _Step:
    """A node that a call has made. The places are those of the nodes that exist by then."""
    name = None
    if isinstance(made.target, OpOverload) and made.target.namespace in {*_NAMESPACES, "prims"}:
        name = made.graph._target_to_str(made.target.overloadpacket.__name__)
    elif made.target is not operator.getitem:
        raise _Unknown
    strange = made.meta.keys() - _OF_THE_CALL - _OF_THE_NODE
    unexplained = (made.meta.keys() & _OF_THE_CALL) - call.meta.keys() - {"from_node", "seq_nr", "nn_module_stack"}
    if strange or unexplained or made.type is not None or not _is_simple(made.meta.get("val")):
        raise _Unknown
    if not set(made.all_input_nodes) <= places.keys():
        raise _Unknown
    args, kwargs = torch.fx.map_arg((made.args, made.kwargs), lambda node: places[node])
    own = {key: value for key, value in made.meta.items() if key in _OF_THE_NODE}
    return _Step(made.target, args, kwargs, name, own)


def _inner(tensor: Any) -> Any:
    """The tensor that a functional tensor stands for."""
    return torch._from_functional_tensor(tensor.elem)


def _copy(fake: FakeTensor) -> FakeTensor:
    """A fake tensor like another one, with memory of its own."""
    size = fake.untyped_storage().nbytes() // fake.element_size()
    memory = torch.empty(size, dtype=fake.dtype, device="meta")
    inner = memory.as_strided(fake.shape, fake.stride(), fake.storage_offset())
    return FakeTensor(fake.fake_mode, inner, fake.device)


def _is_simple(value: Any) -> bool:
    """Whether a result consists of fake tensors that can be copied."""
    return all(
        type(leaf) is FakeTensor
        and leaf.constant is None
        and not leaf._has_symbolic_sizes_strides
        and leaf.layout is torch.strided
        and not (leaf.is_quantized or leaf.requires_grad or leaf.is_conj() or leaf.is_neg())
        and leaf.untyped_storage().nbytes() % leaf.element_size() == 0
        for leaf in pytree.tree_leaves(value)
    )


def _share_memory(tensors: list[Any]) -> bool:
    memories = {tensor.untyped_storage()._cdata for tensor in {id(tensor): tensor for tensor in tensors}.values()}
    return len(memories) < len({*map(id, tensors)})


def _memory(tensor: Any) -> int:
    """What functional tensors have in common that share memory."""
    if type(tensor) is not FunctionalTensor:
        raise _Unknown
    with torch._C.DisableTorchFunction():
        number: int = tensor.elem.untyped_storage()._cdata
    return number


def _written_at_the_end(graph: Graph) -> list[Node] | None:
    """The inputs that the last nodes of a graph write. None: other nodes may write too, or are not understood."""
    nodes, written = [*graph.nodes], []
    while nodes and (nodes[-1].op == "output" or nodes[-1].target is torch.ops.aten.copy_.default):
        node = nodes.pop()
        if node.op != "output":
            written.append(node.args[0])
    understood = all(map(_is_understood, nodes)) and all(node.op in ("get_attr", "placeholder") for node in written)
    return written if understood else None


def _is_understood(node: Node) -> bool:
    """Whether a node has no effect besides its result, and the tracer makes no metadata that depend on other nodes."""
    if node.op != "call_function" or node.target is operator.getitem:
        return bool(node.op != "call_module" or node.target == "_guards_fn")
    return isinstance(node.target, OpOverload) and not node.target._schema.is_mutable and "torch_fn" in node.meta


def _is_known(node: Node) -> bool:
    """Whether a node calls an operator of PyTorch whose result depends only on the arguments."""
    target = node.target
    return isinstance(target, OpOverload) and target.namespace in _NAMESPACES and _STATEFUL.isdisjoint(target.tags)


@contextlib.contextmanager
def _calls_once() -> Iterator[None]:
    runs: weakref.WeakKeyDictionary[PropagateUnbackedSymInts, _Run | None] = weakref.WeakKeyDictionary()

    def run_node(self: PropagateUnbackedSymInts, node: Node) -> Any:
        if self not in runs:
            mode, written = get_proxy_mode(), _written_at_the_end(self.graph)
            tracer = mode.tracer if mode is not None else None
            understood = isinstance(tracer, PythonKeyTracer | None)
            runs[self] = _Run(tracer, written) if written is not None and understood else None
        run = runs[self]
        return _run_node(self, node) if run is None or not _is_known(node) else run.call(self, node)

    with replaced(PropagateUnbackedSymInts, "run_node", run_node):
        yield


@contextlib.contextmanager
def trace_calls_once() -> Iterator[None]:
    """Returns a context manager in which ExecuTorch traces equal calls once, when it decomposes operators."""
    decompose = exported_program._decompose_exported_program

    def decompose_faster(*arguments: Any, **options: Any) -> Any:
        try:
            with _calls_once():
                return decompose(*arguments, **options)
        except _Written:
            return decompose(*arguments, **options)

    with replaced(exported_program, "_decompose_exported_program", decompose_faster):
        yield
