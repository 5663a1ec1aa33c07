"""Faults that a lowering could make, for mutations.py: each kind finds the places of a method where it can be planted.

A method is in the edge dialect, before it is partitioned. What is planted is lowered as the rest.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg

E = ops.edge.aten
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Fault:
    """A fault that can be planted.

    Attributes:
        what: What is wrong then, for people.
        plant: Plants it into the method in which it was found.
    """

    what: str
    plant: Callable[[], None]


class Method:
    """A method to plant faults in.

    Args:
        program: The method in the edge dialect. Faults change it in place.
        rng: Chooses what a fault leaves open, such as a row.
    """

    def __init__(self, program: ExportedProgram, rng: random.Random) -> None:
        self.program, self.rng = program, rng
        self.graph = program.graph_module.graph
        self.placeholders = list(self.graph.find_nodes(op="placeholder"))
        self._specs = dict(zip(self.placeholders, program.graph_signature.input_specs, strict=True))

    @property
    def results(self) -> list[Node]:
        """The operators that return one tensor, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function" and tensor(node) is not None]

    def called(self, *names: str) -> Iterator[Node]:
        """The operators with one of these names, such as `add.Tensor`; or `add`, with any overload."""
        for node in self.graph.nodes:
            if node.op == "call_function" and (name(node) in names or name(node).partition(".")[0] in names):
                yield node

    @property
    def inputs(self) -> list[Node]:
        """The tensors that a caller gives."""
        kinds = {node: spec.kind for node, spec in self._specs.items() if not isinstance(spec.arg, ConstantArgument)}
        return [node for node, kind in kinds.items() if kind == InputKind.USER_INPUT and tensor(node) is not None]

    @property
    def weights(self) -> dict[Node, torch.Tensor]:
        """The parameters, buffers and constants that are used and not written, with their content."""
        written = self.program.graph_signature.buffers_to_mutate.values()
        return {
            node: content
            for node, spec in self._specs.items()
            if spec.kind in _WEIGHTS and node.users and spec.target not in written
            for content in [self.content(node)]
            if content is not None and content.numel()
        }

    @property
    def state(self) -> list[tuple[int, Node, Node]]:
        """The buffers that the method writes: the number of the output, the new value, and the old one."""
        olds = {spec.target: node for node, spec in self._specs.items() if spec.kind == InputKind.BUFFER}
        outputs = self.graph.output_node().args[0]
        return [
            (number, node, olds[spec.target])
            for number, (spec, node) in enumerate(
                zip(self.program.graph_signature.output_specs, outputs, strict=True)
            )
            if spec.kind == OutputKind.BUFFER_MUTATION and spec.target in olds
        ]

    def content(self, node: Node) -> torch.Tensor | None:
        """The content of a parameter, buffer or constant."""
        target = self._specs[node].target
        found = self.program.state_dict.get(target, self.program.constants.get(target))
        return found.detach() if isinstance(found, torch.Tensor) else None

    def fill(self, node: Node, content: torch.Tensor) -> None:
        """Gives a weight other content."""
        target = self._specs[node].target
        holder = self.program.state_dict if target in self.program.state_dict else self.program.constants
        made = content.detach().to(holder[target].dtype).contiguous()
        holder[target] = torch.nn.Parameter(made, False) if isinstance(holder[target], torch.nn.Parameter) else made

    def call(self, target: Any, *arguments: Any, after: Node, **named: Any) -> Node:
        """A new operator behind a node and what was put behind it."""
        with self.graph.inserting_before(self._next(after)):
            node = self.graph.call_function(target, arguments, named)
        node.meta.update({key: value for key, value in after.meta.items() if key in ("debug_handle", "stack_trace")})
        node.meta["val"] = computed(node)
        self._last[after] = node
        return node

    def _next(self, after: Node) -> Node:
        if not hasattr(self, "_last"):
            self._last: dict[Node, Node] = {}
        place = self._last.get(after, after)
        if place.op == "placeholder":
            place = self.placeholders[-1]
            place = self._last.get(place, place)
            return next(node for node in self.graph.nodes if node.op not in ("placeholder", "get_attr"))
        return place.next

    def change(self, node: Node, make: Callable[[Callable[..., Node]], Node]) -> None:
        """Replaces a value by what is made of it, for all that uses it."""
        users = list(node.users)

        def do(target: Any, *arguments: Any, **named: Any) -> Node:
            return self.call(target, *arguments, after=node, **named)

        made = make(do)
        for user in users:
            user.replace_input_with(node, made)

    def change_output(self, number: int, make: Callable[[Callable[..., Node]], Node]) -> None:
        """Replaces one output by what is made of it, for nothing else."""
        output = self.graph.output_node()
        last = output.prev

        def do(target: Any, *arguments: Any, **named: Any) -> Node:
            return self.call(target, *arguments, after=last, **named)

        outputs = list(output.args[0])
        outputs[number] = make(do)
        output.args = (tuple(outputs),)

    def finish(self) -> None:
        """Makes the program one that ExecuTorch takes, after a fault was planted."""
        self.graph.eliminate_dead_code()
        self.graph.lint()
        self.program.graph_module.recompile()
        outputs = self.graph.output_node().args[0]
        for spec, node in zip(self.program.graph_signature.output_specs, outputs, strict=True):
            if isinstance(node, Node) and not isinstance(spec.arg, ConstantArgument):
                spec.arg.name = node.name


def tensor(node: object) -> torch.Tensor | None:
    """The fake tensor that a node returns; None if it returns something else."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def name(node: Node) -> str:
    """The name of an operator with its overload: `add.Tensor`, `quantized_decomposed.quantize_per_tensor.default`."""
    return str(getattr(node.target, "_op", node.target)).removeprefix("aten.")


def computed(node: Node) -> Any:
    """What a node returns, from the fake tensors of its arguments."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    return node.target(*args, **kwargs)


def alike(one: object, other: object) -> bool:
    """Whether two nodes return tensors of the same shape and dtype."""
    a, b = tensor(one), tensor(other)
    return a is not None and b is not None and a.dtype == b.dtype and [*map(str, a.shape)] == [*map(str, b.shape)]


def with_arguments(node: Node, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> bool:
    """Whether an operator with other arguments returns a tensor of the same shape and dtype."""
    kwargs = dict(node.kwargs) if kwargs is None else kwargs
    fake, named = map_arg((tuple(args), kwargs), lambda each: each.meta["val"])
    try:
        value = node.target(*fake, **named)
    except Exception:  # noqa: BLE001 - operators raise anything
        return False
    one, other = (each if isinstance(each, (list, tuple)) else [each] for each in (value, node.meta["val"]))
    return len(one) == len(other) and all(
        a.dtype == b.dtype and [*map(str, a.shape)] == [*map(str, b.shape)]
        for a, b in zip(one, other, strict=True)
        if isinstance(b, torch.Tensor)
    )


Kind = Callable[[Method], Iterator[Fault]]
KINDS: dict[str, Kind] = {}


def kind(title: str) -> Callable[[Kind], Kind]:
    """Adds a kind of faults to the table."""

    def add(function: Kind) -> Kind:
        KINDS[title] = function
        return function

    return add


def _float(node: object) -> bool:
    value = tensor(node)
    return value is not None and value.is_floating_point() and value.dtype != torch.float64


def _integer(node: object) -> bool:
    value = tensor(node)
    return value is not None and value.dtype in (torch.int64, torch.int32)


def _said(node: Node, what: str) -> str:
    return f"{name(node) if node.op == 'call_function' else 'input'} `{node.name}`: {what}"


# Weights


def _filled(method: Method, node: Node, what: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    return Fault(f"weight `{node.name}`: {what}", lambda: method.fill(node, make(method.weights[node].clone())))


def _floats(method: Method, least_dim: int = 1) -> Iterator[tuple[Node, torch.Tensor]]:
    for node, content in method.weights.items():
        if content.is_floating_point() and content.dim() >= least_dim and bool(content.isfinite().all()):
            yield node, content


@kind("weights swapped")
def _weights_swapped(method: Method) -> Iterator[Fault]:
    weights = [(node, content) for node, content in method.weights.items() if content.dim()]
    for (one, a), (other, b) in itertools.combinations(weights, 2):
        if a.shape == b.shape and a.dtype == b.dtype and not torch.equal(a, b):

            def plant(one: Node = one, other: Node = other) -> None:
                a, b = (method.weights[each].clone() for each in (one, other))
                method.fill(one, b)
                method.fill(other, a)

            yield Fault(f"weights `{one.name}` and `{other.name}` swapped", plant)


@kind("weight off by 1 %")
def _weight_scaled(method: Method) -> Iterator[Fault]:
    for node, _ in _floats(method):
        yield _filled(method, node, "1 % too large", lambda content: content * 1.01)


@kind("channel of a weight zeroed")
def _channel_zeroed(method: Method) -> Iterator[Fault]:
    for node, content in _floats(method, 2):
        row = method.rng.randrange(len(content))

        def make(content: torch.Tensor, row: int = row) -> torch.Tensor:
            content[row] = 0
            return content

        yield _filled(method, node, f"row {row} is zero", make)


@kind("channels of a weight swapped")
def _channels_swapped(method: Method) -> Iterator[Fault]:
    for node, content in _floats(method, 2):
        if len(content) > 1:
            row = method.rng.randrange(len(content) - 1)

            def make(content: torch.Tensor, row: int = row) -> torch.Tensor:
                content[[row, row + 1]] = content[[row + 1, row]]
                return content

            yield _filled(method, node, f"rows {row} and {row + 1} swapped", make)


@kind("weight transposed")
def _weight_transposed(method: Method) -> Iterator[Fault]:
    for node, content in _floats(method, 2):
        if content.shape[-1] == content.shape[-2] > 1 and not torch.equal(content, content.transpose(-1, -2)):
            yield _filled(method, node, "transposed", lambda content: content.transpose(-1, -2))


@kind("bias dropped")
def _bias_dropped(method: Method) -> Iterator[Fault]:
    for node in method.called("addmm", "linear", "convolution"):
        place = 0 if name(node).startswith("addmm") else 2
        bias = node.args[place] if len(node.args) > place else None
        if bias in method.weights and bool(method.weights[bias].any()):
            yield _filled(method, bias, "a bias is zero", torch.zeros_like)


@kind("weight in 16 bits")
def _weight_rounded(method: Method) -> Iterator[Fault]:
    for node, _ in _floats(method):
        yield _filled(method, node, "rounded to bfloat16", lambda content: content.to(torch.bfloat16))


@kind("element of a weight")
def _element(method: Method) -> Iterator[Fault]:
    for node, content in _floats(method):
        place = method.rng.randrange(content.numel())

        def make(content: torch.Tensor, place: int = place) -> torch.Tensor:
            flat = content.flatten()
            flat[place] = -flat[place] if flat[place] else 1.0
            return flat.view(content.shape)

        yield _filled(method, node, f"element {place} has the other sign", make)


@kind("integer of a weight")
def _integer_element(method: Method) -> Iterator[Fault]:
    for node, content in method.weights.items():
        if content.dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
            place = method.rng.randrange(content.numel())

            def make(content: torch.Tensor, place: int = place) -> torch.Tensor:
                flat = content.flatten()
                flat[place] += 1 if flat[place] <= 0 else -1
                return flat.view(content.shape)

            yield _filled(method, node, f"element {place} is off by one", make)


@kind("row of a table")
def _table_row(method: Method) -> Iterator[Fault]:
    for node in method.called("embedding"):
        table = node.args[0]
        rows = tensor(table).shape[0]  # type: ignore[union-attr]
        if isinstance(rows, int) and rows > 1:
            row = method.rng.randrange(1, rows)

            def plant(node: Node = node, row: int = row) -> None:
                method.change(
                    node,
                    lambda do: do(
                        E.where.self,
                        do(E.unsqueeze_copy.default, do(E.eq.Scalar, node.args[1], row), -1),
                        do(E.mul.Scalar, node, 0.5),
                        node,
                    ),
                )

            yield Fault(_said(node, f"row {row} of {rows} is halved"), plant)


@kind("later rows of a table")
def _table_rows(method: Method) -> Iterator[Fault]:
    for node in method.called("embedding"):
        rows = tensor(node.args[0]).shape[0]  # type: ignore[union-attr]
        if isinstance(rows, int) and rows > 2:
            row = method.rng.randrange(rows // 2, rows)

            def plant(node: Node = node, row: int = row) -> None:
                method.change(
                    node,
                    lambda do: do(
                        E.where.self,
                        do(E.unsqueeze_copy.default, do(E.ge.Scalar, node.args[1], row), -1),
                        do(E.mul.Scalar, node, 0.5),
                        node,
                    ),
                )

            yield Fault(_said(node, f"rows from {row} of {rows} are halved"), plant)


# Numbers in the graph


def _numbers(node: Node) -> Iterator[tuple[int, float | int]]:
    for place, value in enumerate(node.args):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield place, value


def _argument(node: Node, place: int, value: Any) -> Callable[[], None]:
    return lambda: node.update_arg(place, value)


def _replaced(values: Sequence[Any], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


_FINITE = 1e30


@kind("constant off by 1 %")
def _constant(method: Method) -> Iterator[Fault]:
    for node in method.called("add", "sub", "mul", "div", "pow", "rsub", "full", "full_like", "leaky_relu", "elu"):
        for place, value in _numbers(node):
            if isinstance(value, float) and value and abs(value) < _FINITE:
                yield Fault(_said(node, f"{value} is 1 % too large"), _argument(node, place, value * 1.01))
    for node, content in method.weights.items():
        if not content.dim() and content.is_floating_point() and content.isfinite():
            yield _filled(method, node, "a constant is 1 % too large", lambda content: content * 1.01)


@kind("integer off by one")
def _integer_constant(method: Method) -> Iterator[Fault]:
    for node in method.called("add", "sub", "rsub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod"):
        if any(_integer(argument) for argument in node.args):
            for place, value in _numbers(node):
                if isinstance(value, int) and place:
                    yield Fault(_said(node, f"{value + 1} in place of {value}"), _argument(node, place, value + 1))


@kind("limit of a clamp")
def _limit(method: Method) -> Iterator[Fault]:
    for node in method.called("clamp.default", "hardtanh"):
        for place, value in _numbers(node):
            if place in (1, 2) and abs(value) < _FINITE:
                other = value * 1.1 if value else -0.1
                if _integer(node):
                    other = int(value) + (1 if place == 2 else -1)
                yield Fault(_said(node, f"limit {other} in place of {value}"), _argument(node, place, other))
                if place == 2 and _float(node):
                    yield Fault(_said(node, f"limit {value} dropped"), _argument(node, place, 3.0e38))
    for node in method.called("relu"):
        yield Fault(
            _said(node, "cut off at 6"),
            lambda node=node: method.change(node, lambda do: do(E.hardtanh.default, node, 0.0, 6.0)),  # type: ignore[misc]
        )


@kind("epsilon of a norm")
def _epsilon(method: Method) -> Iterator[Fault]:
    for node in method.called("native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training"):
        place = len(node.args) - 1
        yield Fault(_said(node, "epsilon is 0.01"), _argument(node, place, 0.01))
    for node in method.called("add"):
        for place, value in _numbers(node):
            if isinstance(value, float) and 0 < value < 1e-3:
                yield Fault(_said(node, "epsilon is 0.01"), _argument(node, place, 0.01))


# Operators


_SHAPING = ("view", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "t_copy", "clone", "_to_", "alias")


def _computes(node: Node) -> bool:
    return node.op == "call_function" and not any(word in name(node) for word in (*_SHAPING, "getitem", "quantize"))


@kind("operator dropped")
def _dropped(method: Method) -> Iterator[Fault]:
    for node in method.results:
        for argument in node.all_input_nodes[:2]:
            if _computes(node) and alike(node, argument) and argument not in method.weights:
                yield Fault(_said(node, f"returns `{argument.name}`"), _give(node, argument))


def _give(node: Node, other: Node) -> Callable[[], None]:
    return lambda: node.replace_all_uses_with(other)


_ACTIVATIONS: dict[str, Any] = {
    "relu": lambda do, x: do(E.leaky_relu.default, x, 0.01),
    "sigmoid": lambda do, x: do(
        E.clamp.default, do(E.add.Scalar, do(E.mul.Scalar, x, 1 / 6), 0.5), 0.0, 1.0
    ),
    "tanh": lambda do, x: do(E.hardtanh.default, x, -1.0, 1.0),
    "hardtanh": lambda do, x: do(E.relu.default, x),
    "exp": lambda do, x: do(E.add.Scalar, x, 1.0),
    "erf": lambda do, x: do(E.tanh.default, x),
    "elu": lambda do, x: do(E.relu.default, x),
    "leaky_relu": lambda do, x: do(E.relu.default, x),
    "abs": lambda do, x: do(E.relu.default, x),
    "sqrt": lambda do, x: do(E.relu.default, x),
    "sin": lambda do, x: do(E.cos.default, x),
    "cos": lambda do, x: do(E.sin.default, x),
}


@kind("activation dropped")
def _activation_dropped(method: Method) -> Iterator[Fault]:
    for node in method.called(*_ACTIVATIONS, "gelu", "_softmax", "softmax", "log", "rsqrt", "reciprocal", "neg"):
        if alike(node, node.args[0]):
            yield Fault(_said(node, "dropped"), _give(node, node.args[0]))


@kind("another activation")
def _activation_replaced(method: Method) -> Iterator[Fault]:
    for node in method.called(*_ACTIVATIONS):
        make = _ACTIVATIONS[name(node).partition(".")[0]]
        x = node.args[0]
        if alike(node, x) and _float(node):
            yield Fault(
                _said(node, "replaced by a similar one"),
                lambda node=node, make=make, x=x: method.change(node, lambda do: make(do, x)),  # type: ignore[misc]
            )
    for node in method.called("gelu"):
        other = "none" if node.kwargs.get("approximate") == "tanh" else "tanh"
        yield Fault(
            _said(node, f"approximate={other}"),
            lambda node=node, other=other: setattr(node, "kwargs", {"approximate": other}),  # type: ignore[misc]
        )


_OTHERS = {
    "add.Tensor": E.sub.Tensor,
    "sub.Tensor": E.add.Tensor,
    "mul.Tensor": E.add.Tensor,
    "div.Tensor": E.mul.Tensor,
    "maximum.default": E.minimum.default,
    "minimum.default": E.maximum.default,
    "mean.dim": E.amax.default,
    "amax.default": E.mean.dim,
    "logical_and.default": E.logical_or.default,
    "bitwise_and.Tensor": E.bitwise_or.Tensor,
    "bitwise_or.Tensor": E.bitwise_and.Tensor,
}


@kind("another operator")
def _operator_replaced(method: Method) -> Iterator[Fault]:
    for node in method.results:
        other = _OTHERS.get(name(node))
        if other is not None and not node.kwargs:
            yield Fault(_said(node, f"{other._op} in its place"), lambda node=node, other=other: setattr(node, "target", other))  # type: ignore[misc]


@kind("operands swapped")
def _operands(method: Method) -> Iterator[Fault]:
    for node in method.called("sub.Tensor", "div.Tensor", "pow.Tensor_Tensor", "mm", "bmm", "div.Tensor_mode"):
        args = (node.args[1], node.args[0], *node.args[2:])
        if with_arguments(node, args):
            yield Fault(_said(node, "operands swapped"), lambda node=node, args=args: setattr(node, "args", args))  # type: ignore[misc]
    for node in method.called("where.self"):
        args = (node.args[0], node.args[2], node.args[1])
        yield Fault(_said(node, "branches swapped"), lambda node=node, args=args: setattr(node, "args", args))  # type: ignore[misc]


_COMPARISONS = {"ge": "gt", "gt": "ge", "le": "lt", "lt": "le", "eq": "ge", "ne": "gt"}


@kind("comparison")
def _comparison(method: Method) -> Iterator[Fault]:
    for node in method.called(*_COMPARISONS):
        own, _, overload = name(node).partition(".")
        for other in {_COMPARISONS[own], {"g": "le", "l": "ge"}.get(own[0], "ne" if own == "eq" else "eq")}:
            target = getattr(getattr(E, other), overload)
            yield Fault(
                _said(node, f"{other} in place of {own}"),
                lambda node=node, target=target: setattr(node, "target", target),  # type: ignore[misc]
            )


@kind("rounding")
def _rounding(method: Method) -> Iterator[Fault]:
    for node in method.called("div.Tensor_mode", "div.Scalar_mode"):
        other = "trunc" if node.kwargs.get("rounding_mode") == "floor" else "floor"
        yield Fault(
            _said(node, f"rounds by {other}"),
            lambda node=node, other=other: setattr(node, "kwargs", {"rounding_mode": other}),  # type: ignore[misc]
        )
    for node in method.called("floor_divide"):
        yield Fault(
            _said(node, "rounds to zero"),
            lambda node=node: method.change(  # type: ignore[misc]
                node, lambda do: do(E.div.Tensor_mode, *node.args[:2], rounding_mode="trunc")
            ),
        )
    others = {"floor": E.trunc, "trunc": E.floor, "ceil": E.floor, "round": E.floor}
    for node in method.called(*others):
        target = others[name(node).partition(".")[0]].default
        yield Fault(
            _said(node, f"{target._op} in its place"),
            lambda node=node, target=target: setattr(node, "target", target),  # type: ignore[misc]
        )
    for node in method.called("remainder", "fmod"):
        other = E.fmod if name(node).startswith("remainder") else E.remainder
        target = getattr(other, name(node).partition(".")[2])
        yield Fault(
            _said(node, f"{target._op} in its place"),
            lambda node=node, target=target: setattr(node, "target", target),  # type: ignore[misc]
        )
    for node in method.called("_to_copy", "_to_dim_order_copy"):
        if _integer(node) and _float(node.args[0]):
            yield Fault(
                _said(node, "rounds to the nearest"),
                lambda node=node: node.update_arg(0, method.call(E.round.default, node.args[0], after=node.args[0])),  # type: ignore[misc]
            )


@kind("axis")
def _axis(method: Method) -> Iterator[Fault]:
    for node in method.called("permute_copy"):
        order = list(node.args[1])
        for one, other in itertools.combinations(range(len(order)), 2):
            swapped = list(order)
            swapped[one], swapped[other] = order[other], order[one]
            args = (node.args[0], swapped)
            if with_arguments(node, args):
                yield Fault(_said(node, f"{swapped} in place of {order}"), _argument(node, 1, swapped))
    places = {"_softmax": 1, "softmax": 1, "cumsum": 1, "flip": 1, "index_select": 1, "select_copy": 1, "gather": 1}
    for node in method.called(*places, "cat", "mean", "sum", "amax", "amin", "any", "argmax", "argmin", "slice_copy"):
        place = places.get(name(node).partition(".")[0], 1)
        own = node.args[place] if len(node.args) > place else None
        ndim = tensor(node).dim() if tensor(node) is not None else 0  # type: ignore[union-attr]
        for other in range(-ndim, 0):
            value: Any = [other] if isinstance(own, (list, tuple)) else other
            if isinstance(own, (list, tuple)) and len(own) != 1:
                continue
            first = own[0] if isinstance(own, (list, tuple)) else own
            if isinstance(first, int) and first % ndim != other % ndim:
                args = _replaced(node.args, place, value)
                if with_arguments(node, args):
                    yield Fault(_said(node, f"axis {other} in place of {first}"), _argument(node, place, value))


@kind("order of elements")
def _reinterpreted(method: Method) -> Iterator[Fault]:
    """A view in place of a permutation."""
    for node in method.called("permute_copy", "transpose_copy"):
        value = tensor(node)
        if value is not None and value.dim() > 1 and node.args[0].op != "placeholder":
            shape = [size if isinstance(size, int) else None for size in value.shape]
            if shape.count(None) <= 1 and sum(size != 1 for size in shape) > 1:
                wanted = [-1 if size is None else size for size in shape]
                yield Fault(
                    _said(node, "elements keep their order"),
                    lambda node=node, wanted=wanted: method.change(  # type: ignore[misc]
                        node, lambda do: do(E.view_copy.default, node.args[0], wanted)
                    ),
                )


@kind("parts in another order")
def _parts(method: Method) -> Iterator[Fault]:
    for node in method.called("cat"):
        parts = list(node.args[0])
        swapped = [*parts[1:], parts[0]]
        if len(parts) > 1 and parts[0] is not parts[-1]:
            yield Fault(_said(node, "parts in another order"), _argument(node, 0, swapped))


@kind("index off by one")
def _index(method: Method) -> Iterator[Fault]:
    for node in method.called("select_copy"):
        dim, index = node.args[1:3]
        size = tensor(node.args[0]).shape[dim]  # type: ignore[union-attr]
        if isinstance(index, int) and isinstance(size, int) and size > 1:
            other = index - 1 if index % size else index + 1
            yield Fault(_said(node, f"index {other} in place of {index}"), _argument(node, 2, other))
    for node in method.called("slice_copy"):
        if len(node.args) > 3 and all(isinstance(each, int) for each in node.args[1:4]):
            dim, first, last = node.args[1:4]
            size = tensor(node.args[0]).shape[dim]  # type: ignore[union-attr]
            for step in (-1, 1):
                args = (node.args[0], dim, first + step, last + step, *node.args[4:])
                if isinstance(size, int) and 0 <= first + step and last + step <= size and with_arguments(node, args):
                    yield Fault(
                        _said(node, f"from {first + step} in place of {first}"),
                        lambda node=node, args=args: setattr(node, "args", args),  # type: ignore[misc]
                    )
    for node in method.called("index", "index_select", "gather", "embedding", "index_put", "index_copy"):
        for index in node.all_input_nodes[1:]:
            if _integer(index) and index.op != "placeholder":
                yield Fault(
                    _said(node, f"`{index.name}` is one too small, if it is not zero"),
                    lambda node=node, index=index: node.replace_input_with(  # type: ignore[misc]
                        index,
                        method.call(
                            E.clamp.default, method.call(E.sub.Scalar, index, 1, after=index), 0, after=index
                        ),
                    ),
                )


@kind("geometry of a convolution or pool")
def _geometry(method: Method) -> Iterator[Fault]:
    for node in method.called("convolution"):
        for place, word in ((3, "stride"), (4, "padding"), (5, "dilation")):
            own = list(node.args[place])
            for other in ([own[0] + 1, *own[1:]], [*own[:-1], own[-1] + 1]):
                if with_arguments(node, _replaced(node.args, place, other)):
                    yield Fault(_said(node, f"{word} {other} in place of {own}"), _argument(node, place, other))
        wider = _replaced(node.args, 4, [each + 1 for each in node.args[4]])
        wider = _replaced(wider, 5, [each + 1 for each in node.args[5]])
        if with_arguments(node, wider):
            what = "padding and dilation one more"
            yield Fault(_said(node, what), lambda node=node, wider=wider: setattr(node, "args", wider))  # type: ignore[misc]
    for node in method.called("avg_pool2d", "max_pool2d_with_indices", "max_pool2d"):
        for place in range(1, len(node.args)):
            own = node.args[place]
            others: list[Any] = [not own] if isinstance(own, bool) else []
            if isinstance(own, (list, tuple)) and own:
                others = [[own[0] + 1, *own[1:]], [*own[:-1], own[-1] + 1], [each + 1 for each in own]]
            for other in others:
                if with_arguments(node, _replaced(node.args, place, other)):
                    yield Fault(_said(node, f"argument {place} is {other}, not {own}"), _argument(node, place, other))


@kind("cast of floats")
def _cast(method: Method) -> Iterator[Fault]:
    for node in method.results:
        if tensor(node).dtype == torch.float32 and _computes(node):  # type: ignore[union-attr]
            yield Fault(
                _said(node, "rounded to float16"),
                lambda node=node: method.change(  # type: ignore[misc]
                    node, lambda do: _to(do, _to(do, node, torch.float16), torch.float32)
                ),
            )


@kind("cast of integers")
def _integer_cast(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.results]:
        if _integer(node) and node.users:
            dtype = tensor(node).dtype  # type: ignore[union-attr]
            for small in (torch.int8, torch.uint8):
                yield Fault(
                    _said(node, f"held in {small}".replace("torch.", "")),
                    lambda node=node, small=small, dtype=dtype: method.change(  # type: ignore[misc]
                        node, lambda do: _to(do, _to(do, node, small), dtype)
                    ),
                )


def _to(do: Callable[..., Node], node: Node, dtype: torch.dtype) -> Node:
    value = tensor(node)
    assert value is not None
    order = list(range(value.dim()))
    return do(ops.edge.dim_order_ops._to_dim_order_copy.default, node, dtype=dtype, dim_order=order)


# Values


def _halved(do: Callable[..., Node], node: Node) -> Node:
    if tensor(node).dtype == torch.bool:  # type: ignore[union-attr]
        return do(E.logical_not.default, node)
    return do(E.mul.Scalar, node, 0.5) if _float(node) else do(E.add.Scalar, node, 1)


def _if(
    method: Method, node: Node, what: str, condition: Callable[[Callable[..., Node]], Node], wrong: Any = _halved
) -> Fault:
    """A fault that shows only where a condition holds."""
    return Fault(
        _said(node, what),
        lambda: method.change(node, lambda do: do(E.where.self, condition(do), wrong(do, node), node)),
    )


def _limits(method: Method) -> list[float]:
    """Numbers of the graph at which something may change, and others."""
    found = {
        abs(float(value))
        for node in method.called("clamp", "hardtanh", "gt", "ge", "lt", "le")
        for _, value in _numbers(node)
        if 1 <= abs(value) <= 100
    }
    return [*sorted(found), 4.0, 8.0]


@kind("only large values")
def _large(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.results]:
        if _float(node) and node.users and (node.op == "placeholder" or _computes(node)):
            limit = method.rng.choice(_limits(method))
            yield _if(method, node, f"halved above {limit}", lambda do, x=node, y=limit: do(E.gt.Scalar, x, y))


@kind("only negative values")
def _negative(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.results]:
        if node.users and (_float(node) or _integer(node)) and (node.op == "placeholder" or _computes(node)):
            yield _if(method, node, "wrong below zero", lambda do, x=node: do(E.lt.Scalar, x, 0))


@kind("only zeros")
def _zeros(method: Method) -> Iterator[Fault]:
    def one(do: Callable[..., Node], node: Node) -> Node:
        return do(E.add.Scalar, node, 1)

    for node in [*method.inputs, *method.results]:
        if node.users and (_float(node) or _integer(node)) and (node.op == "placeholder" or _computes(node)):
            yield _if(method, node, "1 in place of 0", lambda do, x=node: do(E.eq.Scalar, x, 0), one)


@kind("only large integers")
def _large_integers(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.results]:
        if node.users and _integer(node):
            limit = method.rng.choice([3, 7, 15, 31, 127, 255])
            yield _if(method, node, f"wrong above {limit}", lambda do, x=node, y=limit: do(E.gt.Scalar, x, y),
                      lambda do, x: do(E.sub.Scalar, x, 1))


@kind("overflow of a softmax")
def _overflow(method: Method) -> Iterator[Fault]:
    for node in method.called("_softmax", "softmax"):
        x, dim = node.args[:2]

        def make(do: Callable[..., Node], x: Node = x, dim: int = dim) -> Node:
            powers = do(E.exp.default, x)
            return do(E.div.Tensor, powers, do(E.sum.dim_IntList, powers, [dim], True))

        yield Fault(
            _said(node, "without the largest subtracted"),
            lambda node=node, make=make: method.change(node, make),  # type: ignore[misc]
        )


@kind("ties")
def _ties(method: Method) -> Iterator[Fault]:
    for node in method.called("argmax", "argmin"):
        x = node.args[0]
        value = tensor(x)
        dim = node.args[1] if len(node.args) > 1 else None
        if value is None or dim is None or not isinstance(value.shape[dim], int):
            continue
        last = value.shape[dim] - 1

        def make(do: Callable[..., Node], node: Node = node, x: Node = x, dim: int = dim, last: int = last) -> Node:
            place = do(node.target, do(E.flip.default, x, [dim]), *node.args[1:], **node.kwargs)
            return do(E.rsub.Scalar, place, last)

        yield Fault(
            _said(node, "the last of equal elements"),
            lambda node=node, make=make: method.change(node, make),  # type: ignore[misc]
        )


@kind("one place of a tensor")
def _one_place(method: Method) -> Iterator[Fault]:
    """The first or the last row along an axis."""
    for node in method.results:
        value = tensor(node)
        if not _float(node) or value is None or not value.dim() or not _computes(node):
            continue
        dim = method.rng.randrange(value.dim())
        size = value.shape[dim]
        if isinstance(size, int) and size > 1:
            def make(do: Callable[..., Node], node: Node = node, dim: int = dim, size: int = size) -> Node:
                most = do(E.slice_copy.Tensor, node, dim, 0, size - 1)
                last = do(E.mul.Scalar, do(E.slice_copy.Tensor, node, dim, size - 1, size), 0.5)
                return do(E.cat.default, [most, last], dim)

            yield Fault(
                _said(node, f"the last of {size} along axis {dim} is halved"),
                lambda node=node, make=make: method.change(node, make),  # type: ignore[misc]
            )


# Sizes


def _sizes(method: Method) -> Iterator[tuple[Node, int, int, int]]:
    """The dynamic sizes of inputs: the input, the axis, the least and the most."""
    for node in method.inputs:
        value = tensor(node)
        assert value is not None
        for dim, size in enumerate(value.shape):
            limits = None if isinstance(size, int) else method.program.range_constraints.get(size.node.expr)
            if limits is not None and int(limits.lower) < (most := min(int(limits.upper), 1 << 20)):
                yield node, dim, int(limits.lower), most


def _count(do: Callable[..., Node], node: Node, dim: int) -> Node:
    """The size of an axis as a tensor without axes."""
    value = tensor(node)
    assert value is not None
    ones = do(E.full_like.default, node, 1.0, dtype=torch.float32, pin_memory=False)
    counted = do(E.sum.dim_IntList, ones, [dim], True)
    return do(E.amax.default, counted, list(range(value.dim())), False)


def _sized(title: str, conditions: Callable[[int, int], Iterable[tuple[str, Any]]]) -> None:
    def find(method: Method) -> Iterator[Fault]:
        places = [node for node in method.results if _float(node) and node.users and _computes(node)]
        for given, dim, least, most in _sizes(method) if places else ():
            for what, condition in conditions(least, most):
                node = method.rng.choice(places)

                def made(do: Callable[..., Node], given: Node = given, dim: int = dim, of: Any = condition) -> Node:
                    return of(do, _count(do, given, dim))  # type: ignore[no-any-return]

                yield _if(method, node, f"halved if axis {dim} of `{given.name}` is {what}", made)

    KINDS[title] = find


def _is(value: int) -> Any:
    return lambda do, count: do(E.eq.Scalar, count, value)


def _odd(do: Callable[..., Node], count: Node) -> Node:
    return do(E.eq.Scalar, do(E.remainder.Scalar, count, 2), 1)


def _even(do: Callable[..., Node], count: Node) -> Node:
    return do(E.eq.Scalar, do(E.remainder.Scalar, count, 2), 0)


def _no_multiple(of: int) -> Any:
    return lambda do, count: do(E.ne.Scalar, do(E.remainder.Scalar, count, of), 0)


_sized("one parity of a size", lambda least, most: [("odd", _odd), ("even", _even)] if most - least > 1 else [])
_sized("end of a size", lambda least, most: [(f"{value}", _is(value)) for value in (least, most)])
_sized("beside the end of a size", lambda least, most: [(f"{most - 1}", _is(most - 1)), (f"{least + 1}", _is(least + 1))])
_sized("multiple of a size", lambda least, most: [(f"no multiple of {of}", _no_multiple(of)) for of in (3, 4, 8) if most > of])


@kind("order of two sizes")
def _order_of_sizes(method: Method) -> Iterator[Fault]:
    places = [node for node in method.results if _float(node) and node.users and _computes(node)]
    for (one, a, *_), (other, b, *_) in itertools.permutations(_sizes(method), 2) if places else ():
        if str(tensor(one).shape[a]) == str(tensor(other).shape[b]):  # type: ignore[union-attr]
            continue
        node = method.rng.choice(places)

        def made(
            do: Callable[..., Node], one: Node = one, a: int = a, other: Node = other, b: int = b
        ) -> Node:
            return do(E.gt.Tensor, _count(do, one, a), _count(do, other, b))

        what = f"halved if axis {a} of `{one.name}` is larger than axis {b} of `{other.name}`"
        yield _if(method, node, what, made)


# State


def _state(method: Method, what: str, make: Callable[[Callable[..., Node], Node, Node], Node]) -> Iterator[Fault]:
    for number, new, old in method.state:
        if alike(new, old):
            yield Fault(
                f"state `{old.name}`: {what}",
                lambda number=number, new=new, old=old: method.change_output(  # type: ignore[misc]
                    number, lambda do: make(do, new, old)
                ),
            )


@kind("state not written")
def _not_written(method: Method) -> Iterator[Fault]:
    return _state(method, "not written", lambda do, new, old: do(E.mul.Scalar, old, 1))


@kind("state saturates")
def _saturates(method: Method) -> Iterator[Fault]:
    limit = method.rng.choice([2, 3, 5, 7])
    return _state(method, f"not above {limit}", lambda do, new, old: do(E.clamp.default, new, None, limit))


@kind("row of the state")
def _state_row(method: Method) -> Iterator[Fault]:
    """What is written at one row of the largest axis is lost."""
    for number, new, old in method.state:
        value = tensor(old)
        if value is None or not value.dim() or not alike(new, old):
            continue
        for dim, size in enumerate(value.shape):
            if isinstance(size, int) and size > 1:
                row = method.rng.randrange(size)

                def make(
                    do: Callable[..., Node], new: Node = new, old: Node = old, dim: int = dim, row: int = row,
                    size: int = size,
                ) -> Node:
                    parts = [
                        do(E.slice_copy.Tensor, which, dim, first, last)
                        for which, first, last in ((new, 0, row), (old, row, row + 1), (new, row + 1, size))
                        if first < last
                    ]
                    return do(E.cat.default, parts, dim)

                yield Fault(
                    f"state `{old.name}`: row {row} of {size} along axis {dim} is not written",
                    lambda number=number, make=make: method.change_output(number, make),  # type: ignore[misc]
                )


@kind("state shifted by one")
def _shifted(method: Method) -> Iterator[Fault]:
    for number, new, old in method.state:
        value = tensor(old)
        if value is None or not alike(new, old):
            continue
        for dim, size in enumerate(value.shape):
            if isinstance(size, int) and size > 1:

                def make(do: Callable[..., Node], new: Node = new, dim: int = dim, size: int = size) -> Node:
                    last = do(E.slice_copy.Tensor, new, dim, size - 1, size)
                    return do(E.cat.default, [last, do(E.slice_copy.Tensor, new, dim, 0, size - 1)], dim)

                yield Fault(
                    f"state `{old.name}`: shifted by one along axis {dim}",
                    lambda number=number, make=make: method.change_output(number, make),  # type: ignore[misc]
                )


@kind("oldest of the state")
def _oldest(method: Method) -> Iterator[Fault]:
    """The method reads zeros at the first or last row of an axis."""
    for _, _, old in method.state:
        value = tensor(old)
        for dim, size in enumerate(value.shape if value is not None else ()):
            if isinstance(size, int) and size > 1 and old.users:
                first = method.rng.choice([True, False])

                def plant(old: Node = old, dim: int = dim, size: int = size, first: bool = first) -> None:
                    users = [user for user in old.users if user.op != "output"]
                    zeros, rest = (
                        method.call(E.slice_copy.Tensor, old, dim, *limits, after=old)
                        for limits in (((0, 1), (1, size)) if first else ((size - 1, size), (0, size - 1)))
                    )
                    zeros = method.call(E.mul.Scalar, zeros, 0, after=old)
                    parts = [zeros, rest] if first else [rest, zeros]
                    made = method.call(E.cat.default, parts, dim, after=old)
                    for user in users:
                        user.replace_input_with(old, made)

                end = "first" if first else "last"
                yield Fault(f"state `{old.name}`: the {end} of {size} along axis {dim} is read as zero", plant)


@kind("state drifts")
def _drifts(method: Method) -> Iterator[Fault]:
    for number, new, old in method.state:
        if alike(new, old) and _float(old):
            yield Fault(
                f"state `{old.name}`: 1 % too large",
                lambda number=number, new=new: method.change_output(  # type: ignore[misc]
                    number, lambda do: do(E.mul.Scalar, new, 1.01)
                ),
            )


# Quantization


_QUANTIZE = ("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.default")


def _with_scale(method: Method) -> Iterator[Node]:
    for node in method.called(*_QUANTIZE):
        if isinstance(node.args[1], float):
            yield node


def _pair(node: Node) -> list[Node]:
    """An operator that quantizes, and those that dequantize its result."""
    return [node, *(user for user in node.users if user.target is not node.target and name(user) in _QUANTIZE)]


@kind("scale off by 3 %")
def _scale(method: Method) -> Iterator[Fault]:
    for node in _with_scale(method):
        yield Fault(_said(node, "scale 3 % too large"), _argument(node, 1, node.args[1] * 1.03))


@kind("zero point off by one")
def _zero_point(method: Method) -> Iterator[Fault]:
    for node in _with_scale(method):
        value = node.args[2] + (1 if node.args[2] < node.args[4] else -1)
        yield Fault(_said(node, f"zero point {value} in place of {node.args[2]}"), _argument(node, 2, value))


@kind("limit of quantized numbers")
def _quantized_limit(method: Method) -> Iterator[Fault]:
    for node in _with_scale(method):
        if name(node) == _QUANTIZE[0]:
            value = node.args[4] - method.rng.choice([1, 16, 40])
            yield Fault(
                _said(node, f"at most {value} in place of {node.args[4]}"),
                lambda node=node, value=value: [each.update_arg(4, value) for each in _pair(node)] and None,  # type: ignore[misc]
            )


@kind("scales of channels")
def _scales(method: Method) -> Iterator[Fault]:
    for node in method.called(
        "quantized_decomposed.dequantize_per_channel.default",
        "torchao.dequantize_affine.default",
        "quantized_decomposed.dequantize_per_channel_group.default",
    ):
        for scales in node.all_input_nodes[1:2]:
            content = method.weights.get(scales)
            if content is not None and content.numel() > 1:
                yield _filled(method, scales, "scales shifted by one channel", lambda content: content.roll(1, 0))
                yield _filled(method, scales, "scales 3 % too large", lambda content: content * 1.03)
