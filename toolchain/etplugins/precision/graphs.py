"""Makes the graph of a method compute in another dtype than float32.

What depends on a floating-point input, a parameter or a state is computed in the new dtype. What depends only on
constants, integers and plain buffers stays in float32, and is converted where the two meet: positions and frequencies
need more than the 11 bits of float16.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

_CAST, _LIMIT = torch.ops.aten._to_copy.default, torch.ops.aten.clamp.default
_CHECKS_DTYPE = torch.ops.aten._assert_tensor_metadata.default
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_OF_MODEL = (InputKind.PARAMETER, InputKind.USER_INPUT)
_OF_NUMBERS = re.compile("number|float|Tensor")  # types of a schema's arguments that hold a scalar, and no size
_LIMITS = ("fill", "new_full", "full", "masked_fill", "where", "scalar_tensor", "clamp", "clip", "hardtanh")
"""Begin the names of operators whose numbers are values and limits: the nearest number of the dtype does as well."""
_FLOAT32 = {"llama::custom_sdpa": ("attn_mask",)}
"""Arguments that an operator of ExecuTorch reads as float32, in whatever dtype it computes."""
_MASK = 1e9  # a larger number in a buffer only has to be large
_UNKNOWN = 2  # stands for a size that depends on values


class Converted:
    """A method that computes in another dtype.

    Its graph is changed in place. Weights keep their dtype until `store`: all methods decide together about them.

    Args:
        program: The method. None of its operators writes to an operand: see `functional`.
        compute: The dtype.
        kept: Returns whether an operator stays in float32.

    Attributes:
        numbers: The operators that compute floating-point numbers.
        without_kernel: Those of them that PyTorch cannot compute in the dtype, or on zeros. They stay in float32.
        constant: Those of them that depend on no input and no parameter. They stay in float32.
    """

    def __init__(self, program: ExportedProgram, compute: torch.dtype, kept: Callable[[Node], bool]) -> None:
        self._program, self._compute, self._kept = program, compute, kept
        self._mode = _fake_mode(program)
        self._casts: dict[tuple[Node, torch.dtype], Node] = {}
        self._has_kernel: set[Any] = set()
        self._large: dict[Node, float] = {}
        self._wide: set[Node] = set()  # what reads them computes in float32
        self._of_model: set[Node] = set()
        self.numbers: list[Node] = []
        self.without_kernel: list[Node] = []
        self.constant: list[Node] = []
        for node in program.graph.find_nodes(op="call_function", target=_CHECKS_DTYPE):
            program.graph.erase_node(node)
        self._values = {**program.state_dict, **program.constants}
        self._was = {node: node.meta.get("val") for node in program.graph.nodes}
        self._weights = dict(self._inputs())
        for node in [each for each in program.graph.nodes if each.op == "call_function"]:
            if node.target is operator.getitem:
                self._take(node)
            elif _tensors(self._was[node]):
                self._convert(node)
        self._end(self._restored)

    def _inputs(self) -> Iterator[tuple[str, Node]]:
        """Yields the inputs of the graph that hold weights, each with its name in the module."""
        nodes = {node.name: node for node in self._program.graph.find_nodes(op="placeholder")}
        written = {*self._program.graph_signature.buffers_to_mutate.values()}
        for spec in self._program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if _numbers(self._was[node]) and (spec.kind in _OF_MODEL or spec.target in written):
                self._of_model.add(node)
            elif self._is_wide(self._values.get(str(spec.target))):
                self._wide.add(node)
            if spec.kind in _WEIGHTS:
                yield str(spec.target), node

    def _take(self, node: Node) -> None:
        """Gives one of several results of an operator the dtype that it has now."""
        of, index = node.args
        node.meta["val"] = of.meta["val"][index]
        self._of_model |= {node} if of in self._of_model and _numbers(node.meta["val"]) else set()

    def _convert(self, node: Node) -> None:
        is_of_model = any(each in self._of_model for each in node.all_input_nodes)
        if _numbers(self._was[node]):
            self.numbers.append(node)
            self._of_model |= {node} if is_of_model else set()
            self.constant += [] if is_of_model else [node]
            if not is_of_model and (number := self._large_number(node)) is not None:
                self._large[node] = number
        reads_wide = any(each in self._wide for each in node.all_input_nodes)
        is_wide = not all(map(self._holds, _scalars(node))) and not (is_of_model and _is_limit(node))
        makes_wide = is_wide or any(each in self._wide - self._of_model for each in node.all_input_nodes)
        if makes_wide and _numbers(self._was[node]) and node not in self._large:
            self._wide.add(node)  # what reads it too: `x / (y + 1e-12)`
        stays = not is_of_model or self._kept(node) or is_wide or reads_wide
        if not stays and not self._computes(node):
            self.without_kernel.append(node)
            stays = True
        floats = [each for each in node.all_input_nodes if _is_float32(self._was[each])]
        stay = {*floats} if stays else _read_as_float32(node)
        for each in floats:
            dtype = torch.float32 if each in stay else self._compute
            if each.meta["val"].dtype != dtype:
                node.replace_input_with(each, self._cast(each, dtype))
        if not stays:
            self._compute_in(node)

    def _cast(self, node: Node, dtype: torch.dtype) -> Node:
        """A node with the value of another one in a dtype, behind it."""
        if (node, dtype) not in self._casts:
            graph = self._program.graph
            is_input = node.op == "placeholder"
            place = graph.find_nodes(op="placeholder")[-1] if is_input else node
            limited = node
            if node in self._large:  # a mask of `finfo.min` must not become infinite
                largest = torch.finfo(dtype).max
                limits = (node, -largest) if self._large[node] < 0 else (node, -largest, largest)
                limited = place = self._call(place, _LIMIT, limits, node, node.meta["val"].dtype)
            self._casts[node, dtype] = self._call(place, _CAST, (limited,), node, dtype, dtype=dtype)
        return self._casts[node, dtype]

    def _call(
        self, place: Node, target: Any, arguments: tuple[Any, ...], of: Node, made: torch.dtype, **keywords: Any
    ) -> Node:
        """A new node behind another one. It has the shape, the module and the line of the node `of`."""
        with self._program.graph.inserting_after(place):
            node = self._program.graph.call_function(target, arguments, keywords)
        node.meta = {key: of.meta[key] for key in ("nn_module_stack", "stack_trace") if key in of.meta}
        node.meta["val"] = self._in(of.meta["val"], made)
        return node

    def _large_number(self, node: Node) -> float | None:
        """The largest number that a constant is made of, if it is so large that it may be a mask."""
        large = [float(each) for each in _scalars(node) if _MASK <= abs(each) < math.inf]
        return max([*large, *(self._large[each] for each in node.all_input_nodes if each in self._large)], default=None)

    def _in(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        with self._mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)

    def _compute_in(self, node: Node) -> None:
        """Makes an operator compute in the dtype: its results, and the numbers in its arguments."""
        node.args, node.kwargs = self._in_range(node, (node.args, dict(node.kwargs)))
        arguments, keywords = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        symbols = self._mode.shape_env
        fresh = contextlib.nullcontext() if symbols is None else symbols.ignore_fresh_unbacked_symbols()
        with self._mode, fresh, enable_python_dispatcher():  # kernels in C++ would fix dynamic sizes
            made = pytree.tree_leaves(node.target(*arguments, **keywords))
        leaves, form = pytree.tree_flatten(self._was[node])  # they have the symbols of sizes that depend on values
        changed = [
            self._in(old, new.dtype) if isinstance(old, torch.Tensor) and old.dtype != new.dtype else old
            for old, new in zip(leaves, made, strict=True)
        ]
        node.meta["val"] = pytree.tree_unflatten(changed, form)

    def _in_range(self, node: Node, arguments: tuple[Any, Any]) -> Any:
        """The arguments of an operator for the dtype."""
        unfit = [each for each in _scalars(node) if isinstance(each, int) and not self._holds(each)]

        def number(value: Any) -> Any:
            return self._number(float(value) if isinstance(value, int) and value in unfit else value)

        return pytree.tree_map(number, arguments)

    def _number(self, value: Any) -> Any:
        """An argument for the dtype. A limit that it cannot hold becomes its largest or its smallest number."""
        if value is torch.float32:
            return self._compute
        if not isinstance(value, float) or self._holds(value):
            return value
        limits = torch.finfo(self._compute)
        least = limits.smallest_normal * limits.eps
        return math.copysign(min(max(abs(value), least), limits.max), value)

    def _holds(self, value: Any) -> bool:
        """Whether the dtype can hold an argument, with at least half of its digits."""
        if not isinstance(value, (int, float)) or value == 0 or not math.isfinite(value):
            return True
        limits = torch.finfo(self._compute)
        return bool(limits.smallest_normal * limits.eps**0.5 <= abs(value) <= limits.max)

    def _is_wide(self, value: torch.Tensor | None) -> bool:
        """Whether a buffer has a number that becomes zero or too large in the dtype, and that is not for a mask."""
        if value is None or not value.dtype.is_floating_point or value.is_meta or not value.numel():
            return False
        sizes, limits = value.detach().abs(), torch.finfo(self._compute)
        is_large = (sizes > limits.max) & (sizes < _MASK)
        return bool((is_large | ((sizes > 0) & (sizes < limits.smallest_normal * limits.eps))).any())

    def _computes(self, node: Node) -> bool:
        """Whether PyTorch has a kernel of an operator for the dtype: computes each operator once, on zeros."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return False
        if node.target not in self._has_kernel:
            try:
                stay, given = _read_as_float32(node), self._in_range(node, (node.args, dict(node.kwargs)))
                arguments, keywords = map_arg(given, lambda each: self._example(self._was[each], each in stay))
                with torch.no_grad():
                    node.target(*arguments, **keywords)
            except Exception:  # noqa: BLE001 - operators raise any exception
                return False  # zeros may be wrong values for it: then nobody knows, and float32 is right
            self._has_kernel.add(node.target)
        return True

    def _example(self, value: Any, stays: bool = False) -> Any:
        """Zeros in the place of a tensor, in float32 if it stays so, and an integer in the place of a symbol."""
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return _UNKNOWN if value.node.hint is None else value.node.hint
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self._compute if value.dtype == torch.float32 and not stays else value.dtype
        return torch.zeros([*map(self._example, value.shape)], dtype=dtype)

    def _restored(self, node: Node, kind: OutputKind, target: str | None) -> Node:
        """An output in the dtype that it had. Buffers are not decided yet."""
        was = self._was[node]
        is_same = not isinstance(was, torch.Tensor) or node.meta["val"].dtype == was.dtype
        return node if is_same or kind == OutputKind.BUFFER_MUTATION else self._cast(node, was.dtype)

    def _end(self, end: Callable[[Node, OutputKind, str | None], Node]) -> None:
        """Replaces the nodes that are outputs."""
        output = self._program.graph.output_node()
        ends = list(output.args[0])
        for index, spec in enumerate(self._program.graph_signature.output_specs):
            if isinstance(ends[index], Node):
                ends[index] = end(ends[index], spec.kind, spec.target)
                spec.arg.name = ends[index].name
        output.args = (tuple(ends),)

    def wants(self) -> Iterator[tuple[str, bool]]:
        """Yields the names of the method's weights in float32, each with whether all that read it compute in the
        dtype."""
        for name, node in self._weights.items():
            if _is_float32(node.meta.get("val")) and node.users:
                yield name, {*node.users} == {self._casts.get((node, self._compute))}

    def store(self, names: set[str]) -> None:
        """Gives the weights with these names the dtype, and completes the graph."""
        for name in names & self._weights.keys():
            node = self._weights[name]
            node.meta["val"] = self._in(node.meta["val"], self._compute)
            if (cast := self._casts.pop((node, self._compute), None)) is not None:
                cast.replace_all_uses_with(node)
                self._program.graph.erase_node(cast)
        self._end(self._written)
        self._program.graph.lint()
        self._program.graph_module.recompile()

    def _written(self, node: Node, kind: OutputKind, target: str | None) -> Node:
        """What is written to a buffer, in the dtype of the buffer."""
        if kind != OutputKind.BUFFER_MUTATION:
            return node
        dtype = self._weights[str(target)].meta["val"].dtype
        return node if node.meta["val"].dtype == dtype else self._cast(node, dtype)


def functional(program: ExportedProgram) -> ExportedProgram:
    """The method without operators that write to their operands: a conversion would separate the memory of the two."""
    graphs = [each.graph for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    schemas = [getattr(node.target, "_schema", None) for graph in graphs for node in graph.nodes]
    return program.run_decompositions({}) if any(getattr(each, "is_mutable", False) for each in schemas) else program


def _fake_mode(program: ExportedProgram) -> FakeTensorMode:
    values = [each for node in program.graph.nodes for each in _tensors(node.meta.get("val"))]
    return detect_fake_mode(values) or FakeTensorMode()


def _scalars(node: Node) -> list[int | float]:
    """The numbers of an operator that its schema calls scalars or floats. Sizes and dimensions are others."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    given = zip(node.target._schema.arguments, node.args, strict=False)
    values = [value for each, value in given if _OF_NUMBERS.search(str(each.type))]
    leaves = pytree.tree_leaves((values, dict(node.kwargs)))
    return [each for each in leaves if isinstance(each, (int, float)) and not isinstance(each, bool)]


def _read_as_float32(node: Node) -> set[Node]:
    """The operands that an operator reads as float32, in whatever dtype it computes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return set()
    names = _FLOAT32.get(node.target._schema.name, ())
    arguments = {each.name: value for each, value in zip(node.target._schema.arguments, node.args, strict=False)}
    return {each for name, each in {**arguments, **node.kwargs}.items() if name in names and isinstance(each, Node)}


def _is_limit(node: Node) -> bool:
    return str(node.target).removeprefix("aten.").startswith(_LIMITS)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def _numbers(value: Any) -> bool:
    """Whether a value has floating-point or complex numbers."""
    return any(each.is_floating_point() or each.is_complex() for each in _tensors(value))


def _is_float32(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
