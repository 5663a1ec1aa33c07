"""Compares the methods of a program in ExecuTorch's runtime with the exported methods in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from etbuild.comparison import accuracy
from etbuild.comparison.calls import Calls
from etbuild.comparison.graph import Graph, Rounding, buffers, is_quantized
from etbuild.errors import BuildError, EtbuildError
from etbuild.exception_text import summary
from etbuild.plan.parts import MethodComparison
from etbuild.runtime.program_files import ProgramFiles
from etbuild.runtime.session import Session

_DIFFERS = "the program computes something else than the exported method in"
_FIRST = "the call with the example inputs"
_SAMPLES = 3  # of how far rounding moves the outputs
_NO_MEMORY = "error: 0x:21"  # the runtime's code for memory that it does not get


@dataclass(frozen=True)
class Method:
    """A method to compare.

    Attributes:
        name: Its name.
        program: The exported method, with its weights.
        examples: Its example inputs, in its order.
        settings: How it is compared.
    """

    name: str
    program: ExportedProgram
    examples: Sequence[Any]
    settings: MethodComparison


@dataclass(frozen=True)
class Wrong:
    """A call for which the program computes something else.

    Attributes:
        method: The method.
        problem: In which call the program fails or differs, and how.
        leaves: The inputs of the call.
        state: The buffers before the call, by name.
    """

    method: str
    problem: str
    leaves: list[Any]
    state: dict[str, torch.Tensor]


class CannotRun(Exception):
    """PyTorch cannot run the exported method with its example inputs. The message says why."""


class Comparison:
    """Calls methods of a program that is loaded once, and the exported methods beside it.

    Args:
        methods: The methods. Several methods share the state of the program.
        files: The program.
        scratch: A directory that outlives the comparison.
    """

    def __init__(self, methods: Sequence[Method], files: ProgramFiles, scratch: Path) -> None:
        self._methods, self._files, self._scratch = methods, files, scratch
        self._history: list[tuple[Method, list[Any]]] = []

    def first_wrong(self, work: int) -> Wrong | None:
        """Makes calls until one goes wrong.

        Args:
            work: How many numbers the operators of a method may read and write after its first call.

        Returns:
            The wrong call; None if all are right.

        Raises:
            BuildError: The runtime cannot load or run a method that PyTorch runs.
        """
        session = Session(self._files, self._scratch)
        graphs = self._graphs()
        for method in self._methods:
            self._load(session, method)
        calls: list[list[tuple[Method, str, list[Any]]]] = []
        for method in self._methods:
            wrong, used = self._call(session, graphs[method.name], method, _FIRST, [*method.examples])
            if wrong is not None:
                return wrong
            chosen = Calls(method.program, method.examples, method.settings.ranges).chosen(work, used)
            calls.append([(method, *call) for call in chosen])
        for method, call, leaves in filter(None, chain(*zip_longest(*calls))):  # the methods take turns
            wrong, _ = self._call(session, graphs[method.name], method, call, leaves)
            if wrong is not None:
                return wrong
        return next(filter(None, (self._wrong_state(session, graphs[each.name], each) for each in self._methods)), None)

    def _wrong_state(self, session: Session, graph: Graph, method: Method) -> Wrong | None:
        """Compares the buffers that the program holds by name."""
        tolerance = method.settings.tolerance
        for name, value in session.state(method.name, graph.state).items():
            found = accuracy.wrong_outputs(
                [value], [graph.state[name]], tolerance, is_quantized(method.program), f"state `{name}`"
            )
            if found:
                _, leaves = self._history[-1]
                return Wrong(method.name, f"{_DIFFERS} {len(self._history)} calls: {found[0]}", leaves, {})
        return None

    def _graphs(self) -> dict[str, Graph]:
        """The exported methods with fresh state. All of them have the same buffers."""
        state: dict[str, torch.Tensor] = {}
        for method in reversed(self._methods):
            state.update(buffers(method.program))
        return {method.name: Graph(method.program, state) for method in self._methods}

    def _load(self, session: Session, method: Method) -> None:
        try:
            session.load(method.name)
        except RuntimeError as error:
            if _NO_MEMORY not in str(error):
                message = f"ExecuTorch's runtime cannot load the method: {summary(error)}"
                raise BuildError.at(("methods", method.name), message) from error

    def _call(
        self, session: Session, graph: Graph, method: Method, call: str, leaves: list[Any]
    ) -> tuple[Wrong | None, int]:
        before = {name: value.clone() for name, value in graph.state.items()}
        try:
            expected, work = graph.call(leaves)
        except Exception as error:  # operators raise any exception: a random index may be too large for the model
            if call == _FIRST:
                raise CannotRun(summary(error)) from error
            graph.state.update(before)
            return None, 0
        self._history.append((method, leaves))
        try:
            actual = session.call(method.name, leaves)
        except EtbuildError as error:
            if _NO_MEMORY in str(error):
                return None, work
            return Wrong(method.name, f"{error} (in {call})", leaves, before), work
        tolerance, quantized = method.settings.tolerance, is_quantized(method.program)
        found = accuracy.wrong_outputs(actual, expected, tolerance, quantized)
        if found and not self._explained_by_rounding(actual, expected, tolerance, quantized):
            return Wrong(method.name, f"{_DIFFERS} {call}: {chr(10).join(found)}", leaves, before), work
        return None, work

    def _explained_by_rounding(self, actual: Any, expected: Any, tolerance: Any, quantized: bool) -> bool:
        """Whether the outputs of the last call are as near to the expected ones as those of other roundings."""
        samples = []
        for seed in range(_SAMPLES):
            graphs, rounding, outputs = self._graphs(), Rounding(seed), list[Any]()
            for method, leaves in self._history:
                outputs, _ = graphs[method.name].call(leaves, rounding)
            samples.append(outputs)
        return accuracy.within_samples(actual, expected, samples, tolerance, quantized)
