"""Finds the first operator of a method that the runtime computes differently from PyTorch.

The exported graph is cut after an operator, lowered as the plan says, and run: a bisection over the graph.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from etbuild.accelerate import accelerated
from etbuild.errors import EtbuildError
from etbuild.exception_text import summary
from etbuild.inputs.source_lines import SourceLines, first_name, shown
from etbuild.plan.plan import LowerPlan, Plan
from etbuild.plan.tests import Tolerance
from etbuild.runtime import child, program_files
from etbuild.runtime.session import Session
from etbuild.testing import compare
from etbuild.testing.reference import Call, Reference, outputs_of

_SKIPPED = ("getitem", "sym_size", "_assert", "alias", "detach", "lift_fresh")
State = Mapping[str, torch.Tensor]


class Search:
    """Searches one method for the operator that parts.

    Args:
        plan: The plan.
        reference: The model.
        call: The call that goes wrong.
        state: The buffers before the call, by name.
        tolerance: How far an element may be from the expected one; None for the default.
    """

    def __init__(self, plan: Plan, reference: Reference, call: Call, state: State, tolerance: Tolerance | None) -> None:
        self._plan, self._reference, self._call = plan, reference, call
        self._state, self._tolerance = state, tolerance
        self._quantized = reference.is_quantized(call.method)
        self._tries = 0

    def run(self, expected: list[Any]) -> str:
        """Searches. Returns what was found, for people.

        Args:
            expected: What the call returns in eager PyTorch.
        """
        name = self._call.method
        program = self._reference.exported(name)
        if self._differs(self._in_eager(program), expected):
            return self._of_export(name, expected)
        whole = self._try(self._module(program))
        if whole is None:
            return f"`{name}` could not be lowered again, so the operator is not known"
        if not whole:
            return (
                f"`{name}`, lowered again from this manifest, is right. So the tested program was built from something "
                "else: other weights or sources, or other versions of packages"
            )
        found = self._first_wrong(program)
        return found or f"no single operator of `{name}` parts: the difference grows over the graph"

    def _of_export(self, name: str, expected: list[Any]) -> str:
        """What to say if the exported graph itself computes something else than the module."""
        if self._reference.has_passes:
            plain = self._in_eager(self._reference.exported(name, passes=False))
            if not self._differs(plain, expected):
                return f"the passes of `passes.aten` change what `{name}` computes"
        return f"the exported graph of `{name}` computes something else than the model, before it is lowered"

    def _in_eager(self, program: ExportedProgram) -> list[Any]:
        module = self._module(program)
        found: list[Any] = child.run({"the exported graph": lambda: self._outputs(module)})["the exported graph"]
        return found

    def _module(self, program: ExportedProgram) -> torch.fx.GraphModule:
        """A copy of the method as a graph module, with the buffers of the state."""
        module = copy.deepcopy(program.module(check_guards=False))
        buffers = dict(module.named_buffers())
        with torch.no_grad():
            for key, value in self._state.items():
                if key in buffers and buffers[key].shape == value.shape:
                    buffers[key].copy_(value)
        return module

    def _outputs(self, module: torch.fx.GraphModule) -> list[Any]:
        positional, keywords = self._call.inputs
        with torch.no_grad():
            return outputs_of(module(*positional, **keywords))

    def _first_wrong(self, program: ExportedProgram) -> str | None:
        """The operator after which a cut graph goes wrong while the one before it is right."""
        module = self._module(program)
        nodes = [node for node in module.graph.nodes if _is_candidate(node)]
        good, bad, reason = -1, len(nodes), ""
        while bad - good > 1:
            middle = (good + bad) // 2
            wrong = self._try(_cut(module, nodes[middle].name))
            if wrong is None:  # this cut cannot be lowered: look at a neighbour
                nodes.pop(middle)
                bad -= 1
            elif wrong:
                bad, reason = middle, wrong
            else:
                good = middle
        return self._described(program, nodes[bad], reason) if bad < len(nodes) else None

    def _try(self, module: torch.fx.GraphModule) -> str | None:
        """The problems of a graph when the runtime runs it; empty if it is right, None if it cannot be lowered."""
        self._tries += 1
        name = f"{self._call.method}, cut {self._tries}"
        with tempfile.TemporaryDirectory() as scratch:
            try:
                files = child.run({f"lowering {name}": lambda: self._lower(module, Path(scratch))})
                outputs = child.run({
                    "actual": lambda: self._in_runtime(Path(next(iter(files.values()))), Path(scratch)),
                    "expected": lambda: self._outputs(module),
                })  # fmt: skip
            except EtbuildError as error:
                return None if "lowering" in str(error) else summary(error)
            except Exception:  # noqa: BLE001 - a cut graph may be one that ExecuTorch refuses
                return None
        return "\n".join(self._differences(outputs["actual"], outputs["expected"]))

    def _in_runtime(self, program: Path, scratch: Path) -> list[Any]:
        session = Session(program_files.read(program), scratch)
        return session.call(self._call.method, self._call.leaves)

    def _differs(self, actual: list[Any], expected: list[Any]) -> bool:
        return bool(self._differences(actual, expected))

    def _differences(self, actual: list[Any], expected: list[Any]) -> list[str]:
        return compare.differences(actual, expected, self._tolerance, self._quantized)

    def _lower(self, module: torch.fx.GraphModule, directory: Path) -> str:
        from etbuild.emit.emit_methods import Lowered, emit_methods
        from etbuild.emit.emit_program import write_program
        from etbuild.lower.finite_weights import non_finite
        from etbuild.lower.lower_methods import lower_programs

        name, finder = self._call.method, self._reference.context.finder
        positional, keywords = self._call.inputs
        with torch.no_grad():
            program = torch.export.export(module, positional, keywords)
        plan = _alone(self._plan.lower_plan, name)
        programs = {name: program}
        weights = non_finite(programs)
        with accelerated():
            edge = lower_programs(plan, programs, {}, finder)
            emitted = emit_methods(plan, Lowered(edge, {}, weights, None), finder)
        return str(write_program(plan, [emitted], {}, finder, directory).artifacts[0].path)

    def _described(self, program: ExportedProgram, node: Node, reason: str) -> str:
        name, finder = self._call.method, self._reference.context.finder
        own = next((each for each in program.graph.nodes if each.name == node.name), node)
        lines = SourceLines.of_programs({name: program}, finder.name_of).of_node(name, first_name(own))
        where = shown(lines)
        parts = [f"the first operator of `{name}` that parts is `{node.target}` (node `{node.name}`)"]
        parts += [f"  {line}" for line in (where or "").splitlines()]
        parts += [f"  {line}" for line in reason.splitlines()]
        return "\n".join(parts)


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
    place = next(index for index, node in enumerate(nodes) if node.name == name)
    for node in reversed(nodes[place + 1 :]):
        if node.op != "placeholder":
            graph.erase_node(node)
    codegen: Any = graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
    graph.output(nodes[place])
    graph.eliminate_dead_code()
    cut.recompile()
    return cut
