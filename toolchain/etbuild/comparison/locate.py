"""Finds the first operator of a method that the runtime computes differently from PyTorch.

The exported graph is cut after an operator, lowered as the plan says, and run: a bisection over the graph.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from etbuild.accelerate.lowering import accelerated
from etbuild.comparison import accuracy
from etbuild.comparison.graph import Rounding, arguments, copied, outputs_of, run_module
from etbuild.errors import EtbuildError
from etbuild.exception_text import summary
from etbuild.inputs.source_lines import SourceLines, first_name, shown
from etbuild.plan.parts import Tolerance
from etbuild.plan.step_plans import LowerPlan
from etbuild.runtime import child, program_files
from etbuild.runtime.session import Session

_SAMPLES = 8  # of how far rounding moves the outputs
_SHOWN = 2  # outputs that a message names
_SKIPPED = ("getitem", "sym_size", "_assert", "alias", "detach", "lift_fresh")
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
    """

    def __init__(self, plan: LowerPlan, call: WrongCall, lines: SourceLines) -> None:
        self._plan, self._call, self._lines = plan, call, lines
        self._inputs = arguments(call.program, call.leaves)
        self._tries = 0
        self._wrong: list[int] = []  # outputs of the last graph

    def run(self) -> str:
        """Searches. Returns what was found, for people."""
        name, program = self._call.method, self._call.program
        whole = self._try(self._module(program))
        if whole is None:
            return f"`{name}` could not be lowered again, so the operator is not known"
        if not whole:
            return (
                f"`{name}`, lowered again from this manifest, is right if this call is the first one. So "
                "earlier calls or other sizes make the difference, or the program was built from other weights"
            )
        wrong = self._wrong
        return self._first_wrong(program) or self._whole(program, wrong)

    def _whole(self, program: ExportedProgram, outputs: Collection[int]) -> str:
        """What to say of a method in which each operator is right as long as nothing follows it."""
        name = self._call.method
        specs, (ends,) = program.graph_signature.output_specs, program.graph.output_node().args
        of_user = [node for spec, node in zip(specs, ends, strict=True) if spec.kind == OutputKind.USER_OUTPUT]
        wrong = [node for index, node in enumerate(of_user) if isinstance(node, Node) and index in outputs]
        made = "".join(f"\n{self._described(node, 'a wrong output comes from')}" for node in wrong[:_SHOWN])
        return f"no single operator of `{name}` is wrong: the difference needs several, or grows over the graph{made}"

    def in_eager(self) -> list[Any]:
        """What the exported method returns in PyTorch."""
        module = self._module(self._call.program)
        found: list[Any] = child.run({"the exported graph": lambda: self._outputs(module)})["the exported graph"]
        return found

    def _module(self, program: ExportedProgram) -> torch.fx.GraphModule:
        """A copy of the method as a graph module, with the buffers of the state."""
        module = copy.deepcopy(program.module(check_guards=False))
        buffers = dict(module.named_buffers())
        with torch.no_grad():
            for key, value in self._call.state.items():
                if key in buffers and buffers[key].shape == value.shape:
                    buffers[key].copy_(value)
        return module

    def _outputs(self, module: torch.fx.GraphModule) -> list[Any]:
        positional, keywords = pytree.tree_map(copied, self._inputs)
        with torch.no_grad():
            return outputs_of(module(*positional, **keywords))

    def _first_wrong(self, program: ExportedProgram) -> str | None:
        """The operator after which a cut graph goes wrong while the one before it is right."""
        module = self._module(program)
        nodes = [node for node in module.graph.nodes if _is_candidate(node)]
        good, bad = -1, len(nodes)
        while bad - good > 1:
            middle = (good + bad) // 2
            wrong = self._try(_cut(module, nodes[middle].name))
            if wrong is None:  # this cut cannot be lowered: look at a neighbour
                nodes.pop(middle)
                bad -= 1
            elif wrong:
                bad = middle
            else:
                good = middle
        if bad == len(nodes):
            return None
        own = next((each for each in program.graph.nodes if each.name == nodes[bad].name), nodes[bad])
        return self._described(own, f"the first wrong operator of `{self._call.method}` is")

    def _try(self, module: torch.fx.GraphModule) -> str | None:
        """The problems of a graph when the runtime runs it; empty if it is right, None if it cannot be lowered."""
        self._tries += 1
        name = f"{self._call.method}, cut {self._tries}"
        with tempfile.TemporaryDirectory() as scratch:
            try:
                (program,) = child.run({f"lowering {name}": lambda: self._lower(module, Path(scratch))}).values()
            except Exception:  # noqa: BLE001 - a cut graph may be one that ExecuTorch refuses
                return None
            try:
                outputs = child.run({
                    "actual": lambda: self._in_runtime(Path(program), Path(scratch)),
                    "expected": lambda: self._outputs(module),
                })  # fmt: skip
            except EtbuildError as error:
                return summary(error)
            except Exception:  # noqa: BLE001 - nor can PyTorch run each cut graph
                return None
        return "\n".join(self._problems(module, **outputs))

    def _problems(self, module: torch.fx.GraphModule, actual: list[Any], expected: list[Any]) -> list[str]:
        """The problems of outputs that are not as near to the expected ones as those of other roundings."""
        tolerance = self._call.tolerance
        found = accuracy.wrong_outputs(actual, expected, tolerance, False)
        if not found:
            return []
        samples = child.run({"samples": lambda: [*map(partial(self._rounded, module), range(_SAMPLES))]})["samples"]
        self._wrong = accuracy.unexplained(actual, expected, samples, tolerance, self._call.quantized)
        return found if self._wrong else []

    def _rounded(self, module: torch.fx.GraphModule, number: int) -> list[Any]:
        return outputs_of(run_module(copy.deepcopy(module), [*map(copied, self._call.leaves)], Rounding(number)))

    def _in_runtime(self, program: Path, scratch: Path) -> list[Any]:
        from etbuild.files.program_file import describe

        facts = describe(program)
        assert facts["kind"] == "program"
        session = Session(program_files.ProgramFiles(program, (), facts), scratch)
        return session.call(self._call.method, self._call.leaves)

    def differences(self, actual: list[Any], expected: list[Any]) -> list[str]:
        """The problems of outputs; empty if they are right."""
        return accuracy.wrong_outputs(actual, expected, self._call.tolerance, self._call.quantized)

    def _lower(self, module: torch.fx.GraphModule, directory: Path) -> str:
        from etbuild.emit.emit_methods import Lowered, emit_methods
        from etbuild.emit.emit_program import write_program
        from etbuild.lower.finite_weights import non_finite
        from etbuild.lower.lower_methods import lower_programs

        name = self._call.method
        positional, keywords = self._inputs
        with torch.no_grad():
            program = torch.export.export(module, positional, keywords)
        plan = _alone(self._plan, name)
        programs = {name: program}
        weights = non_finite(programs)
        with accelerated():
            edge = lower_programs(plan, programs, {})
            emitted = emit_methods(plan, Lowered(edge, {}, weights, None))
        return str(write_program(plan, [emitted], {}, directory).artifacts[0].path)

    def _described(self, node: Node, what: str) -> str:
        where = shown(self._lines.of_node(self._call.method, first_name(node)))
        return "\n".join([f"{what} `{node.target}` (node `{node.name}`)", *(where or "").splitlines()])


def _alone(plan: LowerPlan, name: str) -> LowerPlan:
    """The plan for lowering one method to a program of its own, with its weights in the program."""
    return plan.replace(
        methods={name: plan.methods[name]},
        memory_planning={name: plan.memory_planning[name]},
        executorch=plan.executorch.of_method(name),
        named_data={},
        constant_methods={},
        adapters={},
        share_mutable_buffers=False,
    )


def _is_candidate(node: Node) -> bool:
    value = node.meta.get("val")
    target = str(node.target)
    return (
        node.op == "call_function"
        and isinstance(value, torch.Tensor)
        and value.dtype not in (torch.complex64, torch.complex128)
        and not any(word in target for word in _SKIPPED)
    )


def _cut(module: torch.fx.GraphModule, name: str) -> torch.fx.GraphModule:
    """A copy of a graph module that returns the value of a node, and computes nothing after it."""
    cut = copy.deepcopy(module)
    graph = cut.graph
    nodes = list(graph.nodes)
    number = next(index for index, node in enumerate(nodes) if node.name == name)
    for node in reversed(nodes[number + 1 :]):
        if node.op != "placeholder":
            graph.erase_node(node)
    codegen: Any = graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
    graph.output(nodes[number])
    graph.eliminate_dead_code()
    cut.recompile()
    return cut
