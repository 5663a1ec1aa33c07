"""Finds the first operator of a method that the runtime computes differently from PyTorch.

The exported graph is cut after an operator. The first part is lowered by the plan, and run. PyTorch computes the rest
from the results of the runtime. A bisection finds the first operator after which a cut makes wrong outputs. This
operator is to blame, even if its own results look right: a later operator may enlarge a small error.
"""

from __future__ import annotations

import copy
import functools
import operator
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from etbuild import switches
from etbuild.exception_text import summary
from etbuild.inputs.source_lines import SourceLines, first_name, shown
from etbuild.model.tensor_bytes import dtype_name
from etbuild.plan.step_plans import LowerPlan
from etplugins.comparison import accuracy, references
from etplugins.comparison.graph import Graph, Rounding, arguments, buffers, copied, outputs_of, with_state
from etplugins.comparison.parts import Tolerance
from etplugins.comparison.reference_session import Lowered
from etplugins.runtime import child, program_files
from etplugins.runtime.session import Session

_SHOWN = 2  # nodes that a message names
_SAMPLES = 3  # samples of how far rounding moves the outputs
_WORK_OF_SAMPLES = 1 << 27  # numbers that operators read and write for samples: a large method has only one
_OF_NODE = 1 << 20  # lowering an operator takes as long as computing so many numbers
_LEAST_WORK = 1 << 30  # a search may do so much work; if a method is large,
_TIMES = 3  # it may do so many times the work of lowering and running the method
_SKIPPED = ("sym_size", "_assert", "alias", "detach", "lift_fresh")
State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class WrongCall:
    """A call that goes wrong.

    Attributes:
        method: The name of the method.
        program: The exported method.
        leaves: The inputs, in the order of the method.
        state: The buffers before the call, by name.
        tolerance: How far an element may be from the expected one; None for the default.
        quantized: Whether the method is quantized.
    """

    method: str
    program: ExportedProgram
    leaves: list[Any]
    state: State
    tolerance: Tolerance | None
    quantized: bool


class Search:
    """Searches one method for the first wrong operator.

    Args:
        plan: How the method was lowered.
        call: The call that goes wrong.
        lines: The lines of the method's nodes.
        delegates: The delegates of the method that the runtime here lacks. References run them.
    """

    def __init__(self, plan: LowerPlan, call: WrongCall, lines: SourceLines, delegates: Sequence[str] = ()) -> None:
        self._plan, self._call, self._lines = plan, call, lines
        self._references = references.load(delegates)
        self._inputs = arguments(call.program.call_spec.in_spec, call.leaves)
        self._tries = self._work = 0
        self._cannot_run = False
        self._whole_outputs: list[Any] = []

    def run(self) -> str:
        """Searches. Returns a text for people that says what was found."""
        name, program = self._call.method, self._call.program
        self._expected, self._numbers, self._samples = child.result("the exported graph", self._computed)
        whole = self._try(self._module(program), ())
        if whole is None:
            return f"`{name}` could not be lowered again, so the operator is not known"
        if not whole and self.differences(self._whole_outputs, self._expected):
            return f"other roundings of the exported graph change the outputs of `{name}` as much"
        if not whole:
            only = " for the sizes of this call only" if program.range_constraints else ""
            causes = "dynamic sizes or earlier calls" if only else "earlier calls"
            return (
                f"`{name}`, lowered again from this manifest{only}, is right if this call is the first one. So "
                f"{causes} make the difference, or the program was built from other weights"
            )
        return self._first_wrong(program) or self._whole(program)

    def _computed(self) -> tuple[list[Any], int, list[list[Any]]]:
        """The outputs of the exported graph, how many numbers it reads and writes, and outputs with other roundings."""
        program = self._call.program

        def call(rounding: Rounding | None) -> tuple[list[Any], int]:
            state = {name: value.clone() for name, value in self._call.state.items()}
            return Graph(program, {**buffers(program, state), **state}, {}).call(self._call.leaves, rounding)

        expected, numbers = call(None)
        count = min(max(_WORK_OF_SAMPLES // max(numbers, 1), 1), _SAMPLES)
        return expected, numbers, [call(Rounding(number))[0] for number in range(count)]

    def _whole(self, program: ExportedProgram) -> str:
        """The text about a method in which each operator is right if PyTorch computes the rest."""
        name = self._call.method
        specs, (ends,) = program.graph_signature.output_specs, program.graph.output_node().args
        of_user = [node for spec, node in zip(specs, ends, strict=True) if spec.kind == OutputKind.USER_OUTPUT]
        wrong = [
            node
            for node, *values in zip(of_user, self._whole_outputs, self._expected, strict=False)
            if isinstance(node, Node) and self.differences(*([value] for value in values))
        ]
        made = "".join(f"\n{self._described(node, 'a wrong output ends with')}" for node in wrong[:_SHOWN])
        return (
            f"no operator of `{name}` is wrong by itself: the difference needs several, or grows over the graph{made}"
        )

    def in_eager(self) -> list[Any]:
        """The results of the exported method in PyTorch."""
        module = self._module(self._call.program)
        found: list[Any] = child.run({"the exported graph": lambda: self._outputs(module)})["the exported graph"]
        return found

    def _module(self, program: ExportedProgram) -> torch.fx.GraphModule:
        """A copy of the method as a graph module, with the buffers of the state."""
        return with_state(program, self._call.state)

    def _outputs(self, module: torch.fx.GraphModule) -> list[Any]:
        positional, keywords = pytree.tree_map(copied, self._inputs)
        with torch.no_grad():
            return outputs_of(module(*positional, **keywords))

    def _first_wrong(self, program: ExportedProgram) -> str | None:
        """The first operator after which a cut makes wrong outputs."""
        module = self._module(program)
        nodes = [node for node in module.graph.nodes if _is_candidate(node)]
        limit = max(_LEAST_WORK, _TIMES * self._work)
        good, bad = -1, len(nodes)
        while bad - good > 1 and self._work < limit:
            middle = (good + bad) // 2
            wrong = self._try(*_cut(module, nodes[middle]))
            if wrong is None:  # this cut cannot be lowered: try a neighbour
                nodes.pop(middle)
                bad -= 1
            elif wrong:
                bad = middle
            else:
                good = middle
        own = {node.name: node for node in program.graph.nodes}
        left = [own.get(node.name, node) for node in nodes[good + 1 : bad + 1]]
        if not left:
            return None
        what = f"the first wrong operator of `{self._call.method}` is"
        if len(left) == 1:
            return "\n".join(filter(None, [self._described(left[0], what), self._of_float32(left[0])]))
        return f"{self._described(left[0], f'{what} one of {len(left)}, from')}\n{self._described(left[-1], 'to')}"

    def _of_float32(self, node: Node) -> str | None:
        """The text about an operator that the runtime runs in float32, but not in the dtype of this call."""
        values = [each.meta.get("val") for each in node.all_input_nodes]
        floats = {value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()}
        if not self._cannot_run or floats <= {torch.float32}:
            return None
        try:
            child.result(f"`{node.name}` of float32", lambda: self._run_of_float32(node))
        except Exception:  # noqa: BLE001 - it fails with float32, too
            return None
        dtypes = ", ".join(sorted(dtype_name(dtype) for dtype in floats - {torch.float32}))
        return (
            f"the runtime runs `{node.target}` with float32, and not with {dtypes}: convert what it reads, for example "
            "with `x.float()`, or give the method inputs and weights of float32"
        )

    def _run_of_float32(self, node: Node) -> None:
        """Runs an operator with its inputs in this call, converted to float32."""
        with torch.no_grad():
            recorded = _Recorded(self._module(self._call.program), node.name)
            recorded.run(*map(copied, self._call.leaves), enable_io_processing=False)
        leaves, spec = pytree.tree_flatten(recorded.inputs)
        leaves = [
            each.float() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in leaves
        ]
        tensors = tuple(each for each in leaves if isinstance(each, torch.Tensor))
        with tempfile.TemporaryDirectory() as scratch:
            program = self._lower(_Only(node.target, leaves, spec), (tensors, {}), Path(scratch))
            self._in_runtime(Path(program), Path(scratch), list(tensors))

    def _try(self, module: torch.fx.GraphModule, returned: Sequence[str]) -> str | None:
        """The problems of the outputs if the runtime runs a graph: an empty list if there are none, None if the graph
        cannot be lowered.

        Args:
            module: The graph.
            returned: The names of the nodes whose values it returns, from which PyTorch computes the rest; empty for
                the whole method.
        """
        self._tries += 1
        self._work += _OF_NODE * len(module.graph.nodes) + 2 * self._numbers
        name = f"{self._call.method}, cut {self._tries}"
        with tempfile.TemporaryDirectory() as scratch:
            try:
                run: Callable[[], Any] = functools.partial(self._in_references, module)
                if not self._references:
                    lower = functools.partial(self._lower, module, self._inputs, Path(scratch))
                    program = child.result(f"lowering {name}", lower)
                    run = functools.partial(self._in_runtime, Path(program), Path(scratch), self._call.leaves)
            except Exception:  # noqa: BLE001 - a cut graph may be one that ExecuTorch refuses
                return None
            try:
                outputs = child.result("actual", run)
                if outputs is None:
                    return None
                if returned:
                    values = dict(zip(returned, outputs, strict=True))
                    outputs = child.result("the rest", lambda: self._continued(values))
                else:
                    self._whole_outputs = outputs
            except Exception as error:  # noqa: BLE001 - the rest may fail in any way if the first part is wrong
                self._cannot_run |= not returned
                return summary(error)
        return "\n".join(self._wrong(outputs))

    def _continued(self, values: Mapping[str, Any]) -> list[Any]:
        """The outputs of the method in PyTorch, with given values as the results of some operators."""
        with torch.no_grad():
            run = _Continued(self._module(self._call.program), values)
            return outputs_of(run.run(*map(copied, self._call.leaves), enable_io_processing=False))

    def _wrong(self, actual: list[Any]) -> list[str]:
        """The problems of outputs of the method that other roundings do not explain, as in a comparison."""
        tolerance, quantized = self._call.tolerance, self._call.quantized
        found = accuracy.wrong_outputs(actual, self._expected, tolerance, False)
        return found if accuracy.unexplained(actual, self._expected, self._samples, tolerance, quantized) else []

    def _in_runtime(self, program: Path, scratch: Path, leaves: list[Any]) -> list[Any]:
        from etbuild.files.program_file import describe

        facts = describe(program)
        assert facts["kind"] == "program"
        session = Session(program_files.ProgramFiles(program, (), facts), scratch)
        return session.call(self._call.method, leaves)

    def _in_references(self, module: torch.nn.Module) -> list[Any] | None:
        """The outputs of a graph in references; None if it cannot be lowered."""
        try:
            lowered = Lowered(self._plan, self._call.method, self._exported(module), self._references)
        except Exception:  # noqa: BLE001 - as in `_try`
            return None
        return lowered.call(self._call.leaves)

    def _exported(self, module: torch.nn.Module, inputs: Any = None) -> ExportedProgram:
        positional, keywords = inputs or self._inputs
        with torch.no_grad():
            return torch.export.export(module, positional, keywords)

    def differences(self, actual: list[Any], expected: list[Any]) -> list[str]:
        """The problems of outputs; empty if they are right."""
        return accuracy.wrong_outputs(actual, expected, self._call.tolerance, self._call.quantized)

    def _lower(self, module: torch.nn.Module, inputs: Any, directory: Path) -> str:
        from etbuild.emit.emit_methods import Lowered, emit_methods
        from etbuild.emit.emit_program import write_program
        from etbuild.lower.finite_weights import non_finite
        from etbuild.lower.lower_methods import lower_programs

        name = self._call.method
        program = self._exported(module, inputs)
        plan = references.of_one(self._plan, name)
        programs = {name: program}
        weights = non_finite(programs)
        with switches.lowering():
            edge = lower_programs(plan, programs, {})
            emitted = emit_methods(plan, Lowered(edge, {}, weights, None))
        return str(write_program(plan, [emitted], {}, directory).artifacts[0].path)

    def _described(self, node: Node, what: str) -> str:
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            node = node.args[0]  # one of several results
        where = shown(self._lines.of_node(self._call.method, first_name(node)))
        return "\n".join([f"{what} `{node.target}` (node `{node.name}`)", *(where or "").splitlines()])


def _is_candidate(node: Node) -> bool:
    value = node.meta.get("val")
    target = str(node.target)
    return (
        node.op == "call_function"
        and isinstance(value, torch.Tensor)
        and value.dtype not in (torch.complex64, torch.complex128)
        and not any(word in target for word in _SKIPPED)
    )


class _Continued(Interpreter):  # type: ignore[misc] # torch.fx has no types
    """A run of a graph in which some nodes have given values."""

    def __init__(self, module: torch.fx.GraphModule, values: Mapping[str, Any]) -> None:
        super().__init__(module)
        self._values = values

    def run_node(self, n: Node) -> Any:
        return self._values[n.name] if n.name in self._values else super().run_node(n)


class _Recorded(Interpreter):  # type: ignore[misc] # torch.fx has no types
    """A run of a graph that records the inputs of a node, positional ones and those with names."""

    inputs: Any = None

    def __init__(self, module: torch.fx.GraphModule, name: str) -> None:
        super().__init__(module)
        self._name = name

    def run_node(self, n: Node) -> Any:
        if n.name == self._name:
            self.inputs = self.fetch_args_kwargs_from_env(n)
        return super().run_node(n)


class _Only(torch.nn.Module):  # type: ignore[misc] # torch.nn has no types here
    """A module that calls one operator.

    Args:
        operator: The operator.
        leaves: All inputs of the call. The module is given those that are tensors.
        spec: The structure of the positional and the keyword inputs.
    """

    def __init__(self, operator: Any, leaves: list[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self._operator, self._spec = operator, spec
        self._leaves = [None if isinstance(each, torch.Tensor) else (each,) for each in leaves]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Calls the operator."""
        given = iter(tensors)
        leaves = [next(given) if each is None else each[0] for each in self._leaves]
        positional, keywords = pytree.tree_unflatten(leaves, self._spec)
        return self._operator(*positional, **keywords)


def _cut(module: torch.fx.GraphModule, last: Node) -> tuple[torch.fx.GraphModule, list[str]]:
    """A copy of a graph module that ends after a node. It returns those values that depend on inputs and that later
    operators need. Also returns the names of their nodes."""
    before = [node for node in module.graph.nodes if node <= last]
    depending = {node for node in before if node.op == "placeholder"}
    for node in before:
        if not depending.isdisjoint(node.all_input_nodes):
            depending.add(node)
    needed = [node for node in before if node in depending and any(user > last for user in node.users)]
    returned = dict.fromkeys(node for each in [*needed, last] for node in _computed_of(each))
    cut = copy.deepcopy(module)
    graph, own = cut.graph, {node.name: node for node in cut.graph.nodes}
    for node in reversed([*graph.nodes]):
        if node > own[last.name] and node.op != "placeholder":
            graph.erase_node(node)
    codegen: Any = graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
    graph.output(tuple(own[node.name] for node in returned))
    graph.eliminate_dead_code()
    cut.recompile()
    return cut, [node.name for node in returned]


def _computed_of(node: Node) -> list[Node]:
    """The nodes that a cut graph can return in place of a node. Views and sizes are computed again from them."""
    if node.op != "call_function" or _is_candidate(node):
        return [node] if node.op == "call_function" else []
    return [each for given in node.all_input_nodes for each in _computed_of(given)]
