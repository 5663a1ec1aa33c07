"""Compares the methods of a program in ExecuTorch's runtime with the exported methods and with the model in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

from etbuild.comparison import accuracy, quantized
from etbuild.comparison.calls import Calls, ComparedCall
from etbuild.comparison.coverage import Coverage
from etbuild.comparison.eager import EagerMethod
from etbuild.comparison.graph import Graph, Rounding, buffers, is_finite, is_quantized
from etbuild.comparison.hints import slow_work
from etbuild.comparison.power import Power
from etbuild.errors import BuildError, EtbuildError
from etbuild.exception_text import summary
from etbuild.folding import listed
from etbuild.plan.parts import MethodComparison
from etbuild.runtime import child
from etbuild.runtime.program_files import ProgramFiles
from etbuild.runtime.session import Session

Call = tuple[str, str, list[Any]]
"""A call: its method, what it is for messages, and its inputs."""
Blamed = Literal["lowering", "export", "quantization"]
_DIFFERS = "the program computes something else than the exported method in"
_EXPORT_DIFFERS = "the program and the exported method compute something else than the model in"
_OVERFLOWS = "in PyTorch, the exported method makes numbers that are not finite, and the program has others, in"
_OF_POWER = 8  # times the work of the first call: what it takes to see which weights matter
_FIRST = "the call with the example inputs"
_OF_A_PART = 8  # samples that change numbers by the same part of a step, before they are quantized
_LARGER_PART = 4  # times the part before, for outputs in which a small one shows nothing
_SAMPLES = (1, 3, 8, 16, 24, 32)  # of how far rounding moves outputs; the next number if these do not explain them
_WORK_OF_SAMPLES = 1 << 27  # numbers that operators read and write for them; then more only if the outputs are near
_FAR = 256  # times what the samples explain: more of them would not explain it either
_NO_MEMORY = "error: 0x:21"  # the runtime's code for memory that it does not get
_WITHOUT_MEMORY = "the runtime gets no memory for it"


@dataclass(frozen=True)
class ComparedMethod:
    """A method to compare.

    Attributes:
        name: Its name.
        program: The exported method, with all of its weights that `weights` does not have.
        examples: Its example inputs, in its order.
        settings: How it is compared.
        weights: Weights that are read where they are needed, by name. No method changes them.
        eager: The same method of the model; None if there is no model.
    """

    name: str
    program: ExportedProgram
    examples: Sequence[Any]
    settings: MethodComparison
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    eager: EagerMethod | None = None


@dataclass(frozen=True)
class Wrong:
    """A call for which the program computes something else.

    Attributes:
        method: The method.
        problem: In which call the program fails or differs, and how.
        leaves: The inputs of the call.
        state: The buffers before the call, by name.
        earlier: The calls before this one, each with its method and inputs.
        blames: What is wrong: the lowering, the export, whose method differs from the model, or the quantization.
        overflows: The name of the node with which the exported method itself stops to be finite; None if it is.
    """

    method: str
    problem: str
    leaves: list[Any]
    state: dict[str, torch.Tensor]
    earlier: list[tuple[str, list[Any]]]
    blames: Blamed = "lowering"
    overflows: str | None = None


class CannotRun(Exception):
    """The exported method or the program cannot be run with the example inputs. The message says why."""


@dataclass
class _Sample:
    """The exported methods with other roundings, in the same calls: graphs that keep the state of the calls, the
    rounding, how many calls of the history they have made, and the outputs of the last one."""

    graphs: dict[str, Graph]
    rounding: Rounding
    calls: int = 0
    outputs: Sequence[Any] = ()


def _has_finite(value: Any) -> bool:
    """Whether a value has a number to compare."""
    return not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isfinite().any())


def _unproved(method: ComparedMethod, calls: Sequence[list[Any]]) -> list[str]:
    return Power(method.program, method.weights, calls, method.settings.tolerance).unproved()


def _state_of(method: str, name: str, sample: _Sample) -> Sequence[Any]:
    return [sample.graphs[method].state[name]]


class Comparison:
    """Calls methods of a program that is loaded once, and the exported methods beside it.

    Args:
        methods: The methods. Several methods share the state of the program.
        files: The program; None if only the exports are compared.
        scratch: A directory that outlives the comparison with the program.

    Attributes:
        notes: What was left out of the comparison of a method, by its name.
        losses: What the quantization of a method costs, by its name.
        calls: The calls that were compared.
    """

    def __init__(
        self, methods: Sequence[ComparedMethod], files: ProgramFiles | None = None, scratch: Path | None = None
    ) -> None:
        self._methods, self._files, self._scratch = methods, files, scratch
        self._history: list[tuple[ComparedMethod, list[Any]]] = []
        self._before: dict[str, tuple[list[Any], dict[str, torch.Tensor]]] = {}
        self._samples: list[_Sample] = []
        self._eager = {method.name: method.eager for method in methods if method.eager is not None}
        self._sampled = 0
        self._choosers: dict[str, Calls] = {}
        self._finite: set[str] = set()
        self._used: dict[str, int] = {}
        self._have_buffers = any(method.program.graph_signature.buffers for method in methods)
        self.notes: dict[str, str] = {}
        self.losses: dict[str, str] = {}
        self.calls: list[Call] = []

    def first_wrong(self, work: int) -> Wrong | None:
        """Makes calls until one goes wrong.

        Args:
            work: How many numbers the operators of a method may read and write after its first call.

        Returns:
            The wrong call; None if all are right.

        Raises:
            BuildError: The runtime cannot load or run a method that PyTorch runs.
            CannotRun: PyTorch cannot run a method, or there is not enough memory for it.
        """
        assert self._files is not None, "there is a program"
        assert self._scratch is not None, "there is a place for it"
        session = Session(self._files, self._scratch)
        coverages = {method.name: Coverage(method.program) for method in self._methods}
        graphs = self._graphs(coverages)
        for method in self._methods:
            self._load(session, method)
        calls: list[Iterator[tuple[ComparedMethod, ComparedCall]]] = []
        for method in self._methods:
            wrong, used = self._call(session, graphs[method.name], method, ComparedCall(_FIRST, [[*method.examples]]))
            if wrong is not None:
                return wrong
            self._used[method.name] = used
            slow = slow_work(method.program, self._files.facts["methods"][method.name]["operators"])
            chooser = Calls(method.program, method.examples, method.settings.ranges, coverages[method.name], slow)
            self._choosers[method.name] = chooser
            calls.append(zip(repeat(method), chooser.chosen(work, used), strict=False))
            if used > work:
                why = f"a call takes {used:,} numbers (`checks.compare.work`)"
                self.notes[method.name] = f"only with the sizes of its example inputs: {why}"
        for method, call in filter(None, chain.from_iterable(zip_longest(*calls))):  # the methods take turns
            wrong, _ = self._call(session, graphs[method.name], method, call)
            if wrong is not None:
                return wrong
        wrong = next(
            filter(None, (self._wrong_state(session, graphs[each.name], each) for each in self._methods)), None
        )
        if wrong is None:
            self._note_power(work)
        return wrong

    def _wrong_quantization(
        self, method: ComparedMethod, leaves: list[Any], in_float: list[Any], rounded: list[Any]
    ) -> Wrong | None:
        """Judges what the quantization of a method changes. A tolerance in the manifest allows any loss."""
        found = quantized.loss(in_float, rounded) if quantized.says_something(leaves) else None
        if found is None:
            return None
        self.losses[method.name] = quantized.shown(found)
        problem = quantized.problem(found)
        if problem is None or method.settings.tolerance is not None:
            return None
        return self._of_call(method, problem, blames="quantization")

    def _note_power(self, work: int) -> None:
        """Notes what the calls cannot show."""
        for method in self._methods:
            own = [leaves for called, leaves in self._history if called is method]
            if method.name not in self._finite:
                self.notes.setdefault(method.name, "in calls with nothing but NaN and infinities, which show nothing")
            elif self._used[method.name] * _OF_POWER <= work:
                with suppress(Exception):  # not each operator has a derivative, and some end the process instead
                    found = child.result("what the calls show", partial(_unproved, method, own))
                    if found:
                        said, does = listed(found), "matters" if len(found) == 1 else "matter"
                        self.notes.setdefault(method.name, f"in calls that do not show whether {said} {does}")

    def _wrong_state(self, session: Session, graph: Graph, method: ComparedMethod) -> Wrong | None:
        """Compares the buffers that the program holds by name."""
        for name, value in session.state(method.name, graph.state).items():
            of = partial(_state_of, method.name, name)
            found = self._wrong([value], [graph.state[name]], method, of, f"state `{name}`")
            if found:
                problem = f"after {len(self._history)} calls, {_DIFFERS} its state: {found[0]}"
                return self._of_call(method, problem)
        return None

    def _graphs(self, coverages: Mapping[str, Coverage] | None = None) -> dict[str, Graph]:
        """The exported methods with fresh state. All of them have the same buffers."""
        state: dict[str, torch.Tensor] = {}
        for method in reversed(self._methods):
            state.update(buffers(method.program, method.weights.keys()))
        return {
            method.name: Graph(method.program, state, method.weights, (coverages or {}).get(method.name))
            for method in self._methods
        }

    def _load(self, session: Session, method: ComparedMethod) -> None:
        try:
            session.load(method.name)
        except RuntimeError as error:
            if _NO_MEMORY in str(error):
                raise CannotRun(_WITHOUT_MEMORY) from error
            message = f"ExecuTorch's runtime cannot load the method: {summary(error)}"
            raise BuildError.at(("methods", method.name), message) from error

    def _call(
        self, session: Session, graph: Graph, method: ComparedMethod, call: ComparedCall
    ) -> tuple[Wrong | None, int]:
        before = {name: value.clone() for name, value in graph.state.items()}
        for leaves in call.inputs:
            try:
                expected, work = graph.call(leaves)
                break
            except Exception as error:  # operators raise any exception: a random index may be too large for the model
                if call.name == _FIRST:
                    raise CannotRun(f"PyTorch cannot run the exported method: {summary(error)}") from error
                graph.state.update(before)
        else:
            return None, 0
        if call.is_extreme and not all(map(is_finite, [*expected, *graph.state.values()])):
            graph.state.update(before)  # it overflows, so there is nothing to compare
            return None, work
        graph.see_states(before)
        if any(map(_has_finite, expected)):
            self._finite.add(method.name)
        self._note(method, call.name, leaves, before)
        try:
            actual = session.call(method.name, leaves)
        except EtbuildError as error:
            if _NO_MEMORY in str(error):
                raise CannotRun(f"{_WITHOUT_MEMORY} in {call.name}") from error
            return self._of_call(method, f"{error} (in {call.name})"), work
        found = self._wrong(actual, expected, method, lambda sample: sample.outputs)
        if found:
            node = None if all(map(is_finite, expected)) else self._overflow(method, leaves, before)
            differs = _DIFFERS if node is None else _OVERFLOWS
            wrong = self._of_call(method, f"{differs} {call.name}: {chr(10).join(found)}")
            return replace(wrong, overflows=node), work
        return None, work

    def first_wrong_export(self, calls: Sequence[Call]) -> Wrong | None:
        """Makes calls of another comparison once more, until an exported method differs from the model.

        The runtime is not needed: in these calls, the program has computed what the exported methods compute. So code
        of the model may run in this process, and may change how it computes.

        Args:
            calls: All calls of the other comparison, with the same methods.

        Returns:
            The wrong call; None if all are right.
        """
        graphs, methods = self._graphs(), {method.name: method for method in self._methods}
        for name, label, leaves in calls:
            method, graph = methods[name], graphs[name]
            before = {key: value.clone() for key, value in graph.state.items()}
            exported, _ = graph.call(leaves)
            self._note(method, label, leaves, before)
            wrong = self._wrong_export(method, label, leaves, exported)
            if wrong is not None:
                return wrong
        return None

    def _note(self, method: ComparedMethod, label: str, leaves: list[Any], before: dict[str, torch.Tensor]) -> None:
        self._history.append((method, leaves))
        self._before[method.name] = leaves, before
        self.calls.append((method.name, label, leaves))

    def _of_call(self, method: ComparedMethod, problem: str, blames: Blamed = "lowering") -> Wrong:
        """The last call of a method, with its problem."""
        last = max(index for index, (each, _) in enumerate(self._history) if each.name == method.name)
        earlier = [(each.name, leaves) for each, leaves in self._history[:last]]
        return Wrong(method.name, problem, *self._before[method.name], earlier, blames)

    def _wrong_export(self, method: ComparedMethod, call: str, leaves: list[Any], exported: list[Any]) -> Wrong | None:
        """Compares what the exported method has computed with what the model computes from the same inputs.

        The model computes in float what a quantized method rounds: `_wrong_quantization` judges it. It looks at the
        example inputs only, since others may be outside of the ranges for which the method is quantized.
        """
        eager = self._eager.get(method.name)
        if eager is None:
            return None
        try:
            expected = eager.call(method.program, leaves)
        except EtbuildError:
            raise
        except Exception as error:  # noqa: BLE001 - code of the model: it may refuse values that an exported graph takes
            if call == _FIRST or self._have_buffers:  # else it has no state that is half changed now
                del self._eager[method.name]
                self.notes[method.name] = f"in part: the model itself fails in {call}: {summary(error)}"
            return None
        if is_quantized(method.program):
            return self._wrong_quantization(method, leaves, expected, exported) if call == _FIRST else None
        found = accuracy.wrong_outputs(exported, expected, method.settings.tolerance, False)
        if not found or not self._wrong(expected, exported, method, lambda sample: sample.outputs):
            return None
        return self._of_call(method, f"{_EXPORT_DIFFERS} {call}: {chr(10).join(found)}", "export")

    @staticmethod
    def _overflow(method: ComparedMethod, leaves: list[Any], before: dict[str, torch.Tensor]) -> str | None:
        """The node with which the exported method stops to be finite."""
        state = {name: value.clone() for name, value in before.items()}
        node = Graph(method.program, state, method.weights).first_non_finite(leaves)
        return None if node is None else node.name

    def _wrong(
        self,
        actual: Sequence[Any],
        expected: Sequence[Any],
        method: ComparedMethod,
        of: Callable[[_Sample], Sequence[Any]],
        name: str = "output",
    ) -> list[str]:
        """The problems of values that are not as near to the expected ones as those of other roundings."""
        tolerance, rounds = method.settings.tolerance, is_quantized(method.program)
        found = accuracy.wrong_outputs(actual, expected, tolerance, False, name)
        for count in _SAMPLES if found else ():
            samples = [of(self._sample(number)) for number in range(count)]
            wrong = accuracy.unexplained(actual, expected, samples, tolerance, rounds)
            if not wrong:
                return []
            shown = count >= _OF_A_PART and (not rounds or accuracy.show_rounding(expected, samples, wrong, tolerance))
            is_far = partial(accuracy.unexplained, actual, expected, samples, tolerance, rounds, _FAR)
            if shown or (self._sampled > _WORK_OF_SAMPLES and is_far()):
                break
        return found

    def _sample(self, number: int) -> _Sample:
        """A sample that has made the calls of the history; without buffers, only the last one matters."""
        if number == len(self._samples):
            rounding = Rounding(number, Rounding.OF_STEP * _LARGER_PART ** (number // _OF_A_PART))
            self._samples.append(_Sample(self._graphs(), rounding))
        sample = self._samples[number]
        missing = self._history[sample.calls :]
        for method, leaves in missing if self._have_buffers else missing[-1:]:
            sample.outputs, work = sample.graphs[method.name].call(leaves, sample.rounding)
            self._sampled += work
            if method.name in self._choosers:
                self._choosers[method.name].pay(work)
        sample.calls = len(self._history)
        return sample
