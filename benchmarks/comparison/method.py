"""Methods in the edge dialect that faults are planted in, for faults.py."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

E = ops.edge.aten
Do = Callable[..., Node]
"""Puts an operator into the graph: it takes the operator and its arguments."""
Change = Callable[[Do, Node], Node]
"""Makes another value of a value."""
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
        inputs = self.graph.find_nodes(op="placeholder")
        self._specs = dict(zip(inputs, program.graph_signature.input_specs, strict=True))
        self._last: dict[Node, Node] = {}  # what was put behind a node

    @property
    def results(self) -> list[Node]:
        """The operators that return one tensor, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function" and tensor(node) is not None]

    @property
    def computed(self) -> list[Node]:
        """The operators of `results` that do more than to move elements, and whose result is used."""
        return [node for node in self.results if node.users and computes(node)]

    @property
    def inputs(self) -> list[Node]:
        """The tensors that a caller gives."""
        return [
            node
            for node, spec in self._specs.items()
            if spec.kind == InputKind.USER_INPUT and tensor(node) is not None and node.users
        ]

    def called(self, *names: str) -> Iterator[Node]:
        """The operators with one of these names, such as `add.Tensor`; or `add`, with any overload."""
        for node in self.graph.nodes:
            if node.op == "call_function" and (name(node) in names or base(node) in names):
                yield node

    @property
    def weights(self) -> dict[Node, torch.Tensor]:
        """The parameters, buffers and constants that are used and not written, with their content."""
        written = self.program.graph_signature.buffers_to_mutate.values()
        found = {
            node: self._holder(node).get(spec.target)
            for node, spec in self._specs.items()
            if spec.kind in _WEIGHTS and node.users and spec.target not in written
        }
        return {node: each.detach() for node, each in found.items() if isinstance(each, torch.Tensor) and each.numel()}

    @property
    def state(self) -> list[tuple[int, Node, Node]]:
        """The buffers that the method writes: the number of the output, the new value, and the old one."""
        olds = {spec.target: node for node, spec in self._specs.items() if spec.kind == InputKind.BUFFER}
        outputs = zip(self.program.graph_signature.output_specs, self.graph.output_node().args[0], strict=True)
        return [
            (number, node, olds[spec.target])
            for number, (spec, node) in enumerate(outputs)
            if spec.kind == OutputKind.BUFFER_MUTATION and alike(node, olds.get(spec.target))
        ]

    def _holder(self, node: Node) -> dict[str, Any]:
        state: dict[str, Any] = self.program.state_dict
        return state if self._specs[node].target in state else self.program.constants

    def fill(self, node: Node, content: torch.Tensor) -> None:
        """Gives a weight other content."""
        holder, target = self._holder(node), self._specs[node].target
        made = content.detach().to(holder[target].dtype).contiguous()
        holder[target] = torch.nn.Parameter(made, False) if isinstance(holder[target], torch.nn.Parameter) else made

    def call(self, target: Any, *arguments: Any, after: Node, **named: Any) -> Node:
        """A new operator behind a node and behind what was put there before."""
        place = self._last.get(after, after)
        following = place.next
        while following.op in ("placeholder", "get_attr"):
            following = following.next
        with self.graph.inserting_before(following):
            node = self.graph.call_function(target, arguments, named)
        node.meta.update({key: value for key, value in after.meta.items() if key in ("debug_handle", "stack_trace")})
        node.meta["val"] = _returned(target, node.args, node.kwargs)
        self._last[after] = node
        return node

    def change(self, node: Node, change: Change) -> None:
        """Replaces a value by what is made of it, for all operators that use it, and as an output."""
        users = list(node.users)
        made = change(lambda *args, **named: self.call(*args, after=node, **named), node)
        for user in users:
            user.replace_input_with(node, made)

    def changed(self, node: Node, what: str, change: Change) -> Fault:
        """A fault that replaces a value."""
        return Fault(said(node, what), lambda: self.change(node, change))

    def only_if(self, node: Node, what: str, condition: Change, wrong: Change | None = None) -> Fault:
        """A fault that replaces a value where a condition of it holds."""
        other = wrong or halved
        return self.changed(node, what, lambda do, x: do(E.where.self, condition(do, x), other(do, x), x))

    def written(self, number: int, change: Change) -> None:
        """Replaces one output, and nothing else, by what is made of it."""
        output = self.graph.output_node()
        outputs, last = list(output.args[0]), output.prev
        outputs[number] = change(lambda *args, **named: self.call(*args, after=last, **named), outputs[number])
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


def shape(node: object) -> list[Any]:
    """The shape of the tensor that a node returns."""
    value = tensor(node)
    return [] if value is None else [*value.shape]


def name(node: Node) -> str:
    """The name of an operator with its overload: `add.Tensor`, `quantized_decomposed.quantize_per_tensor.default`."""
    return str(getattr(node.target, "_op", node.target)).removeprefix("aten.")


def base(node: Node) -> str:
    """The name of an operator without its overload."""
    return name(node).rpartition(".")[0]


def said(node: Node, what: str) -> str:
    """A place and what is wrong there, for people."""
    return f"{name(node) if node.op == 'call_function' else 'input'} `{node.name}`: {what}"


def alike(one: object, other: object) -> bool:
    """Whether two nodes return tensors of the same shape and dtype."""
    a, b = tensor(one), tensor(other)
    return a is not None and b is not None and a.dtype == b.dtype and [*map(str, a.shape)] == [*map(str, b.shape)]


_SHAPING = ("view", "permute", "expand", "squeeze", "slice", "select", "t_copy", "clone", "_to_", "alias", "quantize")


def computes(node: Node) -> bool:
    """Whether an operator does more than to move elements or to change their dtype."""
    return node.op == "call_function" and not any(word in name(node) for word in (*_SHAPING, "getitem"))


def is_float(node: object) -> bool:
    value = tensor(node)
    return value is not None and value.dtype in (torch.float32, torch.float16, torch.bfloat16)


def is_integer(node: object) -> bool:
    value = tensor(node)
    return value is not None and value.dtype in (torch.int64, torch.int32)


def _returned(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What an operator returns, as fake tensors. What this assumes of dynamic sizes is not kept: it would fix them."""
    fake, named = map_arg((tuple(args), kwargs), lambda each: each.meta["val"])
    modes = {each.fake_mode for each in pytree.tree_leaves((fake, named)) if isinstance(each, FakeTensor)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(enable_python_dispatcher())
        for mode in modes:
            if mode.shape_env is not None:
                stack.enter_context(mode.shape_env.suppress_guards())
        return target(*fake, **named)


def fits(node: Node, args: Sequence[Any]) -> bool:
    """Whether an operator with other arguments returns tensors of the same shapes and dtypes."""
    try:
        value = _returned(node.target, args, node.kwargs)
    except Exception:  # noqa: BLE001 - operators raise anything
        return False
    new, old = (each if isinstance(each, (list, tuple)) else [each] for each in (value, node.meta["val"]))
    return len(new) == len(old) and all(
        a.dtype == b.dtype and [*map(str, a.shape)] == [*map(str, b.shape)]
        for a, b in zip(new, old, strict=True)
        if isinstance(b, torch.Tensor)
    )


def replaced(node: Node, what: str, **attributes: Any) -> Fault:
    """A fault that gives an operator another target, or other arguments."""

    def plant() -> None:
        for key, value in attributes.items():
            setattr(node, key, value)

    return Fault(said(node, what), plant)


def with_item(values: Sequence[Any], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def given(node: Node, other: Node, what: str) -> Fault:
    return Fault(said(node, what), lambda: node.replace_all_uses_with(other))


def by(target: Any, *arguments: Any) -> Change:
    """Applies an operator to a value."""
    return lambda do, node: do(target, node, *arguments)


def on(node: Node, change: Change) -> Change:
    """Changes another node in its place."""
    return lambda do, _: change(do, node)


def halved(do: Do, node: Node) -> Node:
    if is_float(node):
        return do(E.mul.Scalar, node, 0.5)
    return do(E.add.Scalar, node, 1) if is_integer(node) else do(E.logical_not.default, node)
