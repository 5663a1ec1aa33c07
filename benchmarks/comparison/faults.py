"""Faults that a lowering could make, for mutations.py: each kind finds the places of a method where it fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.fx import Node

from benchmarks.comparison.method import (
    Change,
    Do,
    E,
    Fault,
    Method,
    alike,
    base,
    by,
    fits,
    given,
    halved,
    is_float,
    is_integer,
    name,
    on,
    replaced,
    said,
    shape,
    tensor,
    with_item,
)

_INFINITE = 1e30  # a limit of this size is none
Kind = Callable[[Method], Iterator[Fault]]
KINDS: dict[str, Kind] = {}
"""The kinds of faults by their titles. Each finds its places in a method."""


def kind(title: str) -> Callable[[Kind], Kind]:
    """Adds a kind to the table."""

    def add(function: Kind) -> Kind:
        KINDS[title] = function
        return function

    return add


# Weights


def _filled(method: Method, node: Node, what: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    return Fault(f"weight `{node.name}`: {what}", lambda: method.fill(node, make(method.weights[node].clone())))


def _floats(method: Method, axes: int = 0) -> Iterator[tuple[Node, torch.Tensor]]:
    for node, content in method.weights.items():
        if content.is_floating_point() and content.dim() >= axes and bool(content.isfinite().all()):
            yield node, content


@kind("weights swapped")
def _weights_swapped(method: Method) -> Iterator[Fault]:
    for (one, a), (other, b) in itertools.combinations(method.weights.items(), 2):
        if a.shape == b.shape and a.dtype == b.dtype and not torch.equal(a, b):

            def plant(one: Node = one, other: Node = other, a: torch.Tensor = a, b: torch.Tensor = b) -> None:
                method.fill(one, b.clone())
                method.fill(other, a.clone())

            yield Fault(f"weights `{one.name}` and `{other.name}` swapped", plant)


@kind("weight off by 1 %")
def _weight_scaled(method: Method) -> Iterator[Fault]:
    for node, _ in _floats(method, 1):
        yield _filled(method, node, "1 % too large", lambda content: content * 1.01)


@kind("weight in 16 bits")
def _weight_rounded(method: Method) -> Iterator[Fault]:
    for node, _ in _floats(method, 1):
        yield _filled(method, node, "rounded to bfloat16", lambda content: content.to(torch.bfloat16))


@kind("weight transposed")
def _weight_transposed(method: Method) -> Iterator[Fault]:
    for node, content in _floats(method, 2):
        if content.shape[-1] == content.shape[-2] > 1 and not torch.equal(content, content.transpose(-1, -2)):
            yield _filled(method, node, "transposed", lambda content: content.transpose(-1, -2))


@kind("channel of a weight")
def _channel(method: Method) -> Iterator[Fault]:
    for node, content in _floats(method, 2):
        row, count = method.rng.randrange(len(content)), len(content)
        zeroed = _changed_rows([row], lambda rows: rows * 0)
        yield _filled(method, node, f"row {row} of {count} is zero", zeroed)
        if row:
            swapped = _changed_rows([row - 1, row], lambda rows: rows.flip(0))
            yield _filled(method, node, f"rows {row - 1} and {row} of {count} swapped", swapped)


def _changed_rows(
    rows: list[int], make: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(content: torch.Tensor) -> torch.Tensor:
        content[rows] = make(content[rows])
        return content

    return change


@kind("element of a weight")
def _element(method: Method) -> Iterator[Fault]:
    for node, content in method.weights.items():
        place = method.rng.randrange(content.numel())
        if content.is_floating_point():
            negative = _changed_element(place, lambda element: -element if element else element + 1)
            yield _filled(method, node, f"element {place} of {content.numel()} has the other sign", negative)


@kind("integer of a weight")
def _integer_element(method: Method) -> Iterator[Fault]:
    for node, content in method.weights.items():
        place = method.rng.randrange(content.numel())
        if content.dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
            other = _changed_element(place, lambda element: element + (1 if element <= 0 else -1))
            yield _filled(method, node, f"element {place} of {content.numel()} is off by one", other)


def _changed_element(
    place: int, make: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(content: torch.Tensor) -> torch.Tensor:
        flat = content.flatten()
        flat[place] = make(flat[place])
        return flat.view(content.shape)

    return change


@kind("bias dropped")
def _bias_dropped(method: Method) -> Iterator[Fault]:
    weights = method.weights
    for node in method.called("addmm", "linear", "convolution"):
        place = 0 if base(node) == "addmm" else 2
        bias = node.args[place] if len(node.args) > place else None
        if bias in weights and bool(weights[bias].any()):
            yield _filled(method, bias, "a bias is zero", torch.zeros_like)


@kind("rows of a table")
def _table_rows(method: Method) -> Iterator[Fault]:
    for node in method.called("embedding"):
        rows, indices = shape(node.args[0])[0], node.args[1]
        for compare, word in ((E.eq.Scalar, "row"), (E.ge.Scalar, "rows from")):
            row = method.rng.randrange(1, rows)
            found = _row_is(compare, indices, row)
            yield method.only_if(node, f"{word} {row} of {rows} halved", found)


def _row_is(compare: Any, indices: Node, row: int) -> Change:
    return lambda do, _: do(E.unsqueeze_copy.default, do(compare, indices, row), -1)


# Numbers in the graph


def _numbers(node: Node) -> Iterator[tuple[int, float | int]]:
    for place, value in enumerate(node.args):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield place, value


@kind("constant off by 1 %")
def _constant(method: Method) -> Iterator[Fault]:
    for node in method.called("add", "sub", "mul", "div", "pow", "rsub", "full", "full_like", "leaky_relu", "elu"):
        for place, value in _numbers(node):
            if isinstance(value, float) and value and abs(value) < _INFINITE:
                yield replaced(node, f"{value} is 1 % too large", args=with_item(node.args, place, value * 1.01))
    for node, content in _floats(method):
        if not content.dim():
            yield _filled(method, node, "a constant is 1 % too large", lambda content: content * 1.01)


@kind("integer off by one")
def _integer_constant(method: Method) -> Iterator[Fault]:
    for node in method.called("add", "sub", "rsub", "mul", *_COMPARISONS, "remainder", "fmod", "floor_divide"):
        for place, value in _numbers(node):
            if isinstance(value, int) and place and any(map(is_integer, node.args)):
                yield replaced(node, f"{value + 1} in place of {value}", args=with_item(node.args, place, value + 1))


@kind("limit of a clamp")
def _limit(method: Method) -> Iterator[Fault]:
    for node in method.called("clamp", "hardtanh"):
        for place, value in _numbers(node):
            if place in (1, 2) and abs(value) < _INFINITE:
                other = (value * 1.1 or -0.1) if is_float(node) else value + (1 if place == 2 else -1)
                yield replaced(node, f"limit {other} in place of {value}", args=with_item(node.args, place, other))
                if place == 2 and is_float(node):
                    yield replaced(node, f"limit {value} dropped", args=with_item(node.args, place, 3.0e38))
    for node in method.called("relu"):
        yield method.changed(node, "cut off at 6", by(E.hardtanh.default, 0.0, 6.0))


@kind("epsilon of a norm")
def _epsilon(method: Method) -> Iterator[Fault]:
    for node in method.called("native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training"):
        yield replaced(node, "epsilon is 0.01", args=(*node.args[:-1], 0.01))
    for node in method.called("add"):
        for place, value in _numbers(node):
            if isinstance(value, float) and 0 < value < 1e-3:
                yield replaced(node, "epsilon is 0.01", args=with_item(node.args, place, 0.01))


# Operators


@kind("operator dropped")
def _dropped(method: Method) -> Iterator[Fault]:
    weights = method.weights
    for node in method.computed:
        for argument in node.all_input_nodes[:2]:
            if alike(node, argument) and argument not in weights:
                yield given(node, argument, f"returns `{argument.name}`")


_ACTIVATIONS: dict[str, Change] = {
    "relu": by(E.leaky_relu.default, 0.01),
    "sigmoid": lambda do, x: do(E.clamp.default, do(E.add.Scalar, do(E.mul.Scalar, x, 1 / 6), 0.5), 0.0, 1.0),
    "tanh": by(E.hardtanh.default, -1.0, 1.0),
    "hardtanh": by(E.relu.default),
    "exp": by(E.add.Scalar, 1.0),
    "erf": by(E.tanh.default),
    "elu": by(E.relu.default),
    "leaky_relu": by(E.relu.default),
    "abs": by(E.relu.default),
    "sqrt": by(E.relu.default),
    "sin": by(E.cos.default),
    "cos": by(E.sin.default),
}
"""For each activation a similar one, of the same input."""


@kind("activation dropped")
def _activation_dropped(method: Method) -> Iterator[Fault]:
    for node in method.called(*_ACTIVATIONS, "gelu", "_softmax", "softmax", "log", "rsqrt", "reciprocal", "neg"):
        if alike(node, node.args[0]):
            yield given(node, node.args[0], "dropped")


@kind("another activation")
def _activation_replaced(method: Method) -> Iterator[Fault]:
    for node in method.called(*_ACTIVATIONS):
        make, given = _ACTIVATIONS[base(node)], node.args[0]
        if alike(node, given) and is_float(node):
            yield method.changed(node, "replaced by a similar one", on(given, make))
    for node in method.called("gelu"):
        other = "none" if node.kwargs.get("approximate") == "tanh" else "tanh"
        yield replaced(node, f"approximate={other}", kwargs={"approximate": other})


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


def _other(node: Node, target: Any) -> Fault:
    return replaced(node, f"{target._op} in its place", target=target)


@kind("another operator")
def _operator_replaced(method: Method) -> Iterator[Fault]:
    for node in method.results:
        if name(node) in _OTHERS and not node.kwargs:
            yield _other(node, _OTHERS[name(node)])


@kind("operands swapped")
def _operands(method: Method) -> Iterator[Fault]:
    for node in method.called("sub.Tensor", "div.Tensor", "pow.Tensor_Tensor", "mm", "bmm", "div.Tensor_mode"):
        args = (node.args[1], node.args[0], *node.args[2:])
        if fits(node, args):
            yield replaced(node, "operands swapped", args=args)
    for node in method.called("where.self"):
        yield replaced(node, "branches swapped", args=(node.args[0], node.args[2], node.args[1]))


_COMPARISONS = {
    "ge": ("gt", "le"),
    "gt": ("ge", "le"),
    "le": ("lt", "ge"),
    "lt": ("le", "ge"),
    "eq": ("ge", "ne"),
    "ne": ("gt", "eq"),
}


@kind("comparison")
def _comparison(method: Method) -> Iterator[Fault]:
    for node in method.called(*_COMPARISONS):
        overload = name(node).rpartition(".")[2]
        for other in _COMPARISONS[base(node)]:
            yield _other(node, getattr(getattr(E, other), overload))


@kind("rounding")
def _rounding(method: Method) -> Iterator[Fault]:
    for node in method.called("div.Tensor_mode", "div.Scalar_mode"):
        other = "trunc" if node.kwargs.get("rounding_mode") == "floor" else "floor"
        yield replaced(node, f"rounds by {other}", kwargs={"rounding_mode": other})
    others = {"floor": E.trunc, "trunc": E.floor, "ceil": E.floor, "round": E.floor}
    for node in method.called(*others):
        yield _other(node, others[base(node)].default)
    for node in method.called("remainder", "fmod"):
        target = E.fmod if base(node) == "remainder" else E.remainder
        yield _other(node, getattr(target, name(node).rpartition(".")[2]))
    for node in method.called("_to_copy", "dim_order_ops._to_dim_order_copy"):
        if is_integer(node) and is_float(node.args[0]):
            yield method.changed(node.args[0], "rounded", by(E.round.default))


_ONE_AXIS = ("_softmax", "softmax", "cumsum", "cat", "mean", "sum", "amax", "amin", "any", "argmax", "argmin", "flip")


@kind("axis")
def _axis(method: Method) -> Iterator[Fault]:
    for node in method.called("permute_copy"):
        order = list(node.args[1])
        for one, other in itertools.combinations(range(len(order)), 2):
            swapped = list(order)
            swapped[one], swapped[other] = order[other], order[one]
            if fits(node, (node.args[0], swapped)):
                yield replaced(node, f"{swapped} in place of {order}", args=(node.args[0], swapped))
    for node in method.called(*_ONE_AXIS, "index_select", "select_copy", "gather", "slice_copy"):
        own: Any = node.args[1] if len(node.args) > 1 else None
        axis = own[0] if isinstance(own, (list, tuple)) and len(own) == 1 else own
        axes = len(shape(node.args[0] if isinstance(node.args[0], Node) else node.args[0][0]))
        for other in range(axes) if isinstance(axis, int) else ():
            args = with_item(node.args, 1, other if axis is own else [other])
            if other != axis % axes and fits(node, args):
                yield replaced(node, f"axis {other} in place of {axis % axes}", args=args)


@kind("order of elements")
def _reinterpreted(method: Method) -> Iterator[Fault]:
    """A view in place of a permutation."""
    for node in method.called("permute_copy", "transpose_copy"):
        sizes = [size if isinstance(size, int) else -1 for size in shape(node)]
        if sizes.count(-1) <= 1 and sum(size != 1 for size in sizes) > 1 and node.args[0].op != "placeholder":
            given = node.args[0]
            yield method.changed(node, "elements keep their order", on(given, by(E.view_copy.default, sizes)))


@kind("parts in another order")
def _parts(method: Method) -> Iterator[Fault]:
    for node in method.called("cat"):
        parts = list(node.args[0])
        if len(parts) > 1 and parts[0] is not parts[-1]:
            yield replaced(node, "parts in another order", args=with_item(node.args, 0, [*parts[1:], parts[0]]))


def _less(do: Do, node: Node) -> Node:
    return do(E.clamp.default, do(E.sub.Scalar, node, 1), 0)


@kind("index off by one")
def _index(method: Method) -> Iterator[Fault]:
    for node in method.called("select_copy"):
        dim, index = node.args[1:3]
        size = shape(node.args[0])[dim]
        if isinstance(index, int) and isinstance(size, int) and size > 1:
            other = index - 1 if index % size else index + 1
            yield replaced(node, f"index {other} in place of {index}", args=with_item(node.args, 2, other))
    for node in method.called("slice_copy"):
        if len(node.args) > 3 and all(isinstance(each, int) for each in node.args[1:4]):
            dim, first, last = node.args[1:4]
            for step in (-1, 1):
                args = (node.args[0], dim, first + step, last + step, *node.args[4:])
                if first + step >= 0 and last + step <= shape(node.args[0])[dim] and fits(node, args):
                    yield replaced(node, f"from {first + step} in place of {first}", args=args)
    for node in method.called("index", "index_select", "gather", "embedding", "index_put", "index_copy"):
        for index in node.all_input_nodes[1:]:
            if is_integer(index):
                yield method.changed(index, f"one less, if it is not zero, for {name(node)}", _less)


@kind("geometry of a convolution or pool")
def _geometry(method: Method) -> Iterator[Fault]:
    for node in method.called("convolution", "avg_pool2d", "max_pool2d_with_indices", "max_pool2d"):
        of = (3, 4, 5) if base(node) == "convolution" else range(1, len(node.args))
        for place in of:
            own = node.args[place]
            others: list[Any] = [not own] if isinstance(own, bool) else []
            if isinstance(own, (list, tuple)) and own:
                others = [[own[0] + 1, *own[1:]], [*own[:-1], own[-1] + 1], [each + 1 for each in own]]
            for args in (with_item(node.args, place, other) for other in others):
                if fits(node, args):
                    yield replaced(node, f"argument {place} is {args[place]} and not {own}", args=args)
    for node in method.called("convolution"):
        wider = with_item(node.args, 4, [each + 1 for each in node.args[4]])
        wider = with_item(wider, 5, [each + 1 for each in node.args[5]])
        if fits(node, wider):
            yield replaced(node, "padding and dilation one more", args=wider)


@kind("cast of floats")
def _cast(method: Method) -> Iterator[Fault]:
    for node in method.computed:
        if shape(node) and tensor(node).dtype == torch.float32:  # type: ignore[union-attr]
            yield method.changed(node, "rounded to float16", _through(torch.float16, torch.float32))


@kind("cast of integers")
def _integer_cast(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.results]:
        for small in (torch.int8, torch.uint8) if is_integer(node) and node.users else ():
            through = _through(small, tensor(node).dtype)  # type: ignore[union-attr]
            yield method.changed(node, f"held in {str(small).removeprefix('torch.')}", through)


def _through(small: torch.dtype, own: torch.dtype) -> Change:
    def change(do: Do, node: Node) -> Node:
        for dtype in (small, own):
            order = list(range(len(shape(node))))
            node = do(ops.edge.dim_order_ops._to_dim_order_copy.default, node, dtype=dtype, dim_order=order)
        return node

    return change


# Values


@kind("only large values")
def _large(method: Method) -> Iterator[Fault]:
    own = (abs(value) for node in method.called("clamp", "hardtanh", *_COMPARISONS) for _, value in _numbers(node))
    limits = [*sorted({value for value in own if 1 <= value <= 100}), 4.0, 8.0]
    for node in [*method.inputs, *method.computed]:
        if is_float(node):
            limit = method.rng.choice(limits)
            yield method.only_if(node, f"halved above {limit}", by(E.gt.Scalar, limit))


@kind("only large integers")
def _large_integers(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.results]:
        if is_integer(node) and node.users:
            limit = method.rng.choice([3, 7, 15, 31, 127, 255])
            above = by(E.gt.Scalar, limit)
            yield method.only_if(node, f"one less above {limit}", above, by(E.sub.Scalar, 1))


@kind("only negative values")
def _negative(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.computed]:
        if is_float(node) or is_integer(node):
            yield method.only_if(node, "wrong below zero", by(E.lt.Scalar, 0))


@kind("only zeros")
def _zeros(method: Method) -> Iterator[Fault]:
    for node in [*method.inputs, *method.computed]:
        if is_float(node) or is_integer(node):
            yield method.only_if(node, "1 in place of 0", by(E.eq.Scalar, 0), by(E.add.Scalar, 1))


@kind("overflow of a softmax")
def _overflow(method: Method) -> Iterator[Fault]:
    for node in method.called("_softmax", "softmax"):

        def plain(do: Do, node: Node) -> Node:
            powers = do(E.exp.default, node.args[0])
            return do(E.div.Tensor, powers, do(E.sum.dim_IntList, powers, [node.args[1]], True))

        yield method.changed(node, "without the largest subtracted", plain)


@kind("ties")
def _ties(method: Method) -> Iterator[Fault]:
    for node in method.called("argmax", "argmin"):
        dim = node.args[1] if len(node.args) > 1 else None
        if isinstance(dim, int) and isinstance(shape(node.args[0])[dim], int):

            def last(do: Do, node: Node) -> Node:
                given, dim = node.args[:2]
                place = do(node.target, do(E.flip.default, given, [dim]), *node.args[1:], **node.kwargs)
                return do(E.add.Scalar, do(E.mul.Scalar, place, -1), shape(given)[dim] - 1)

            yield method.changed(node, "the last of equal elements", last)


@kind("one place of a tensor")
def _one_place(method: Method) -> Iterator[Fault]:
    for node in method.computed:
        axes = [(dim, size) for dim, size in enumerate(shape(node)) if isinstance(size, int) and size > 1]
        if axes and is_float(node):
            dim, size = method.rng.choice(axes)
            row = method.rng.choice([0, size - 1, method.rng.randrange(size)])
            what = f"place {row} of {size} along axis {dim} halved"
            yield method.changed(node, what, _with_row(dim, size, row, halved))


def _with_row(dim: int, size: int, row: int, change: Change) -> Change:
    """Changes one row along an axis."""

    def make(do: Do, node: Node) -> Node:
        def part(first: int, last: int) -> list[Node]:
            return [do(E.slice_copy.Tensor, node, dim, first, last)] if first < last else []

        (own,) = part(row, row + 1)
        return do(E.cat.default, [*part(0, row), change(do, own), *part(row + 1, size)], dim)

    return make


# Sizes


def _sizes(method: Method) -> Iterator[tuple[Node, int, int, int]]:
    """The dynamic sizes of inputs: the input, the axis, the least and the most."""
    for node in method.inputs:
        for dim, size in enumerate(shape(node)):
            limits = None if isinstance(size, int) else method.program.range_constraints.get(size.node.expr)
            if limits is not None and int(limits.lower) < (most := min(int(limits.upper), 1 << 20)):
                yield node, dim, int(limits.lower), most


def _count(do: Do, node: Node, dim: int) -> Node:
    """The size of an axis as a tensor without axes."""
    ones = do(E.full_like.default, node, 1.0, dtype=torch.float32, pin_memory=False)
    return do(E.amax.default, do(E.sum.dim_IntList, ones, [dim], True), list(range(len(shape(node)))), False)


def _counted(node: Node, dim: int, condition: Change) -> Change:
    """Whether a condition holds for the size of an axis of an input."""
    return lambda do, _: condition(do, _count(do, node, dim))


def _is(value: float, of: int | None = None) -> Change:
    """Whether a count, or its remainder, is a number."""
    return lambda do, count: do(E.eq.Scalar, count if of is None else do(E.remainder.Scalar, count, of), value)


def _no_multiple(of: int) -> Change:
    return lambda do, count: do(E.ne.Scalar, do(E.remainder.Scalar, count, of), 0)


def _sized(title: str, conditions: Callable[[int, int], Iterable[tuple[str, Change]]]) -> None:
    @kind(title)
    def find(method: Method) -> Iterator[Fault]:
        places = [node for node in method.computed if is_float(node)]
        for source, dim, least, most in _sizes(method) if places else ():
            for what, condition in conditions(least, most):
                counted = _counted(source, dim, condition)
                what = f"halved if axis {dim} of `{source.name}` is {what}"
                yield method.only_if(method.rng.choice(places), what, counted)


_sized(
    "one parity of a size", lambda least, most: [("odd", _is(1, 2)), ("even", _is(0, 2))] if most > least + 1 else []
)
_sized("end of a size", lambda least, most: [(str(value), _is(value)) for value in (least, most)])
_sized("beside the end of a size", lambda least, most: [(str(size), _is(size)) for size in (least + 1, most - 1)])
_sized("multiple of a size", lambda _, most: [(f"no multiple of {n}", _no_multiple(n)) for n in (3, 4, 8) if most > n])


@kind("order of two sizes")
def _order_of_sizes(method: Method) -> Iterator[Fault]:
    places = [node for node in method.computed if is_float(node)]
    for (one, a, *_), (other, b, *_) in itertools.permutations(_sizes(method), 2) if places else ():
        if str(shape(one)[a]) != str(shape(other)[b]):

            def larger(do: Do, _: Node, one: Node = one, a: int = a, other: Node = other, b: int = b) -> Node:
                return do(E.gt.Tensor, _count(do, one, a), _count(do, other, b))

            what = f"halved if axis {a} of `{one.name}` is larger than axis {b} of `{other.name}`"
            yield method.only_if(method.rng.choice(places), what, larger)


# State


def _state(method: Method, number: int, old: Node, what: str, change: Change) -> Fault:
    return Fault(f"state `{old.name}`: {what}", lambda: method.written(number, change))


@kind("state not written")
def _not_written(method: Method) -> Iterator[Fault]:
    for number, _, old in method.state:
        yield _state(method, number, old, "not written", on(old, by(E.mul.Scalar, 1)))


@kind("state saturates")
def _saturates(method: Method) -> Iterator[Fault]:
    for number, _, old in method.state:
        limit = method.rng.choice([2, 3, 5, 7])
        yield _state(method, number, old, f"not above {limit}", by(E.clamp.default, None, limit))


@kind("state drifts")
def _drifts(method: Method) -> Iterator[Fault]:
    for number, _, old in method.state:
        if is_float(old):
            yield _state(method, number, old, "1 % too large", by(E.mul.Scalar, 1.01))


def _rows(method: Method) -> Iterator[tuple[int, Node, int, int]]:
    for number, _, old in method.state:
        for dim, size in enumerate(shape(old)):
            if isinstance(size, int) and size > 1:
                yield number, old, dim, size


@kind("row of the state")
def _state_row(method: Method) -> Iterator[Fault]:
    for number, old, dim, size in _rows(method):
        row = method.rng.randrange(size)
        kept = on(old, by(E.slice_copy.Tensor, dim, row, row + 1))
        what = f"row {row} of {size} along axis {dim} is not written"
        yield _state(method, number, old, what, _with_row(dim, size, row, kept))


@kind("state shifted by one")
def _shifted(method: Method) -> Iterator[Fault]:
    for number, old, dim, size in _rows(method):

        def shifted(do: Do, new: Node, dim: int = dim, size: int = size) -> Node:
            last, others = (do(E.slice_copy.Tensor, new, dim, *ends) for ends in ((size - 1, size), (0, size - 1)))
            return do(E.cat.default, [last, others], dim)

        yield _state(method, number, old, f"shifted by one along axis {dim}", shifted)


@kind("oldest of the state")
def _oldest(method: Method) -> Iterator[Fault]:
    """The method reads zeros at the first or last row of an axis."""
    written = {number: node for number, node, _ in method.state}
    for number, old, dim, size in _rows(method):
        if written[number] is not old and any(user.op != "output" for user in old.users):
            row = method.rng.choice([0, size - 1])
            zero = _with_row(dim, size, row, by(E.mul.Scalar, 0))
            yield method.changed(old, f"row {row} of {size} along axis {dim} is read as zero", zero)


# Quantization


_QUANTIZE = ("quantized_decomposed.quantize_per_tensor", "quantized_decomposed.dequantize_per_tensor")


def _quantizing(method: Method) -> Iterator[Node]:
    """The operators that quantize or dequantize with one scale, which is a number."""
    for node in method.called(*_QUANTIZE):
        if isinstance(node.args[1], float):
            yield node


@kind("scale off by 3 %")
def _scale(method: Method) -> Iterator[Fault]:
    for node in _quantizing(method):
        yield replaced(node, "scale 3 % too large", args=with_item(node.args, 1, node.args[1] * 1.03))


@kind("zero point off by one")
def _zero_point(method: Method) -> Iterator[Fault]:
    for node in _quantizing(method):
        value = node.args[2] + (1 if node.args[2] < node.args[4] else -1)
        yield replaced(node, f"zero point {value} in place of {node.args[2]}", args=with_item(node.args, 2, value))


@kind("limit of quantized numbers")
def _quantized_limit(method: Method) -> Iterator[Fault]:
    for node in _quantizing(method):
        if base(node) == _QUANTIZE[0]:
            value = node.args[4] - method.rng.choice([1, 16, 40])

            def plant(node: Node = node, value: int = value) -> None:
                for each in (node, *(user for user in node.users if base(user) == _QUANTIZE[1])):
                    each.update_arg(4, value)

            yield Fault(said(node, f"at most {value} in place of {node.args[4]}"), plant)


@kind("scales of channels")
def _scales(method: Method) -> Iterator[Fault]:
    weights = method.weights
    for node in method.graph.nodes:
        if node.op == "call_function" and "dequantize" in name(node):
            for scales in node.all_input_nodes[1:2]:
                if scales in weights and weights[scales].numel() > 1:
                    yield _filled(method, scales, "scales shifted by one channel", lambda content: content.roll(1, 0))
                    yield _filled(method, scales, "scales 3 % too large", lambda content: content * 1.03)
