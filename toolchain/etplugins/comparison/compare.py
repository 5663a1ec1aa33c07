"""Compares a program with its exported methods, and judges where these differ from the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

from etbuild.errors import BuildError, EtbuildError, counted
from etbuild.exception_text import summary
from etbuild.folding import listed
from etplugins.comparison import accuracy, layout
from etplugins.comparison.calls import Calls, ComparedCall
from etplugins.comparison.coverage import LIMITED, Coverage
from etplugins.comparison.graph import Graph, Rounding, buffers, is_finite, is_quantized
from etplugins.comparison.hints import slow_work, states
from etplugins.comparison.parts import MethodComparison
from etplugins.comparison.power import Power
from etplugins.comparison.random_values import Limits
from etplugins.edges import facts as edges
from etplugins.runtime import child
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session

Call = tuple[str, str, list[Any], list[Any]]
"""A call: its method, what it is for messages, its inputs, and the outputs of the exported method."""
Blamed = Literal["lowering", "runtime", "layout", "export", "quantization"]
_DIFFERS = "the program computes something else than the exported method in"
_EXPORT_DIFFERS = "the program and the exported method compute something else than the model in"
_OVERFLOWS = "in PyTorch, the exported method makes numbers that are not finite, and the program has others, in"
_OF_POWER = 8  # finding out which weights matter takes so many times the work of the first call
FIRST = "the call with the example inputs"
OF_SAMPLE = "the call with the sample "
"""Begins the name of a call, before the name of a file."""
_OF_A_PART = 8  # so many samples in a row change numbers to quantize by the same part of a step
_LARGER_PART = 4  # then the part is so many times larger: in some outputs, a small one shows nothing
_SAMPLES = (1, 3, 8, 16, 24, 32)  # how many samples of rounding are made; the next number if they do not explain it
_WORK_OF_SAMPLES = 1 << 27  # numbers read and written for samples; beyond it, only outputs that are near get more
_MUCH_WORK = 1 << 30  # numbers read and written for samples; beyond it, those of the largest part come first
_LARGEST_PARTS = (24, 25, 26)  # samples that change numbers to quantize by the largest part of a step
_NOT_NEAR = 16  # beyond so many times their errors, the other samples are not made
_SHOWN = 3  # names that a note lists
_FAR = 256  # an error so many times larger than that of the samples is not explained by more of them
_NO_MEMORY = "error: 0x:21"  # the runtime's error code if it gets no memory
_WITHOUT_MEMORY = "the runtime gets no memory for it"


@dataclass(frozen=True)
class ComparedMethod:
    """A method to compare.

    Attributes:
        name: Its name.
        program: The exported method, with all weights that are not in `weights`.
        examples: Its example inputs, in its order.
        settings: How it is compared.
        weights: Weights that are read when they are needed, by name. No method changes them.
        samples: More inputs from the manifest, each with the name of its file.
        converted: Whether the manifest makes it compute in 16-bit floats.
    """

    name: str
    program: ExportedProgram
    examples: Sequence[Any]
    settings: MethodComparison
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    samples: Sequence[tuple[str, list[Any]]] = ()
    converted: bool = False

    def numbers(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Outputs as numbers, where integers stand for them: they differ by a step where rounding differs."""
        found = self._edges[1]
        return edges.dequantized(outputs, found) if any(found) else outputs

    @property
    def ranges(self) -> Sequence[Limits | None]:
        """The ranges of its inputs, in integers where these stand for numbers."""
        pairs = zip_longest(self.settings.ranges, self._edges[0][: len(self.settings.ranges)])
        return [edges.limits(each, edge) for each, edge in pairs] if any(self._edges[0]) else self.settings.ranges

    @cached_property
    def _edges(self) -> tuple[edges.Edges, edges.Edges]:
        return edges.of_program(self.program)


@dataclass(frozen=True)
class Wrong:
    """A call that goes wrong.

    Attributes:
        method: The method.
        problem: In which call the program fails or differs, and how.
        leaves: The inputs of the call.
        state: The buffers before the call, by name.
        earlier: The calls before this one, each with its method and inputs.
        blames: What is wrong: the lowering; the runtime, which cannot run the call; the order of an output in memory;
            the export, because its method differs from the model; or the quantization.
        overflows: The name of the first node whose result in the exported method is not finite; None if all are finite.
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


class Undefined(Exception):
    """What the program computes in a call is not defined, so that the call shows nothing. The message says why."""


@dataclass
class _Sample:
    """The exported methods with other roundings, in the same calls. It has graphs that keep the state, the rounding,
    how many calls of the history were made, and the outputs of the last one."""

    graphs: dict[str, Graph]
    rounding: Rounding
    calls: int = 0
    outputs: Sequence[Any] = ()

    def call(self, method: str, leaves: list[Any]) -> tuple[list[Any], int]:
        """Calls a method with the other rounding, or without it where the method then fails: a number that becomes an
        index may round out of its range."""
        graph = self.graphs[method]
        before = {name: value.clone() for name, value in graph.state.items()}
        try:
            return graph.call(leaves, self.rounding)
        except Exception:  # noqa: BLE001 - operators raise any exception
            graph.state.update(before)
            return graph.call(leaves)


def _stops(method: ComparedMethod, what: str) -> Exception:
    """The exception for a method that PyTorch cannot run. If a conversion may have broken it, that is an error."""
    if not method.converted:
        return CannotRun(what)
    return BuildError.at(("methods", method.name), f"{what}; `keep` in `model.dtype` computes a module in float32")


def _has_finite(value: Any) -> bool:
    """Whether a value has a finite number, which can be compared."""
    return not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isfinite().any())


def _unproved(method: ComparedMethod, calls: Sequence[list[Any]], outputs: Sequence[list[Any]]) -> list[str]:
    try:
        return Power(method.program, method.weights, calls, outputs, method.settings.tolerance).unproved()
    except Exception:  # noqa: BLE001 - not each operator has a derivative
        return []


def _state_of(method: str, name: str, sample: _Sample) -> Sequence[Any]:
    return [sample.graphs[method].state[name]]


class Comparison:
    """Calls methods of a program that is loaded once, and the exported methods beside it.

    Args:
        methods: The methods. Several methods share the state of the program.
        files: The program; None if only the exports are compared.
        scratch: A directory that outlives the comparison with the program.
        jobs: How many processes may work at the same time to find what the calls show.
        sessions: Loads the program.

    Attributes:
        notes: The parts of a method that were not compared, by the method's name.
        calls: The calls that were compared.
        agreement: For each method, the worst ratio of signal to error in decibels, and the number of calls.
    """

    def __init__(
        self,
        methods: Sequence[ComparedMethod],
        files: ProgramFiles | None = None,
        scratch: Path | None = None,
        jobs: int = 1,
        sessions: Callable[[ProgramFiles, Path], Any] = Session,
    ) -> None:
        self._methods, self._files, self._scratch, self._jobs = methods, files, scratch, jobs
        self._sessions = sessions
        self._history: list[tuple[ComparedMethod, list[Any]]] = []
        self._before: dict[str, tuple[list[Any], dict[str, torch.Tensor]]] = {}
        self._samples: dict[int, _Sample] = {}
        self._sampled = 0
        self._choosers: dict[str, Calls] = {}
        self._coverages: dict[str, Coverage] = {}
        self._finite: set[str] = set()
        self._used: dict[str, int] = {}
        self._have_states = any(states(method.program) for method in methods)
        self.notes: dict[str, str] = {}
        self.calls: list[Call] = []
        self.agreement: dict[str, tuple[float, int]] = {}

    def first_wrong(self, work: int) -> Wrong | None:
        """Makes calls until one goes wrong, or the work is done.

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
        session = self._sessions(self._files, self._scratch)
        self._coverages = coverages = {method.name: Coverage(method.program) for method in self._methods}
        graphs = self._graphs(coverages)
        for method in self._methods:
            self._load(session, method)
        calls: list[Iterator[tuple[ComparedMethod, ComparedCall]]] = []
        for method in self._methods:
            wrong, used = self._call(session, graphs[method.name], method, ComparedCall(FIRST, [[*method.examples]]))
            if wrong is not None:
                return wrong
            self._used[method.name] = used
            slow = slow_work(method.program, session.kernels(method.name))
            chooser = Calls(method.program, method.examples, method.ranges, coverages[method.name], slow)
            self._choosers[method.name] = chooser
            calls.append(zip(repeat(method), chain(self._of_samples(method, work, used), chooser.chosen(work, used))))
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

    def call_exported(self, work: int) -> None:
        """Calls the exported methods with their example inputs and samples, without the program.

        Args:
            work: How many numbers the operators of a method may read and write after its first call.
        """
        graphs = self._graphs()
        for method in self._methods:
            outputs, used = graphs[method.name].call(method.examples)
            self._note(method, FIRST, [*method.examples], outputs, {})
            for call in self._of_samples(method, work, used):
                for leaves in call.inputs:
                    outputs, _ = graphs[method.name].call(leaves)
                    self._note(method, call.name, leaves, outputs, {})

    def _of_samples(self, method: ComparedMethod, work: int, used: int) -> Iterator[ComparedCall]:
        """Yields the calls with the samples: the first one, and as many as the work allows."""
        count = max(work // max(used, 1), 1)
        for name, leaves in method.samples[:count]:
            yield ComparedCall(f"{OF_SAMPLE}`{name}`", [leaves])
        if len(method.samples) > count:
            limit = "`checks.compare.work` allows no more"
            self.notes[method.name] = f"with {count} of {counted(len(method.samples), 'sample')}: {limit}"

    def _note_power(self, work: int) -> None:
        """Notes what the calls cannot show."""
        tasks = {}
        for method in self._methods:
            own = [(leaves, outputs) for name, _, leaves, outputs in self.calls if name == method.name]
            if method.name not in self._finite:
                self.notes.setdefault(method.name, "in calls with nothing but NaN and infinities, which show nothing")
            elif self._used[method.name] * _OF_POWER <= work:
                tasks[method.name] = partial(_unproved, method, *map(list, zip(*own, strict=True)))
        unproved: dict[str, list[str]] = {}
        with suppress(Exception):  # derivatives of some operators end the process
            unproved = child.run(tasks, self._jobs)
        for name, coverage in self._coverages.items():
            if found := unproved.get(name):
                said, does = listed(found), "matters" if len(found) == 1 else "matter"
                self.notes.setdefault(name, f"in calls that do not show whether {said} {does}")
            never: dict[str, list[str]] = {}
            for node, what in coverage.unseen(LIMITED):
                never.setdefault(what, []).append(node.name)
            if never:
                said = "; ".join(f"{listed(names, _SHOWN)} never {what}" for what, names in never.items())
                self.notes.setdefault(name, f"in calls in which {said}")

    def _wrong_state(self, session: Session, graph: Graph, method: ComparedMethod) -> Wrong | None:
        """Compares the buffers that the program holds by name."""
        for name, value in session.state(method.name, graph.state).items():
            of = partial(_state_of, method.name, name)
            found = self._wrong([value], [graph.state[name]], method, of, f"state `{name}`")
            if found:
                problem = f"after {counted(len(self._history), 'call')}, {_DIFFERS} its state: {found[0]}"
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
                if call.name == FIRST:
                    what = f"PyTorch cannot run the exported method: {summary(error)}"
                    raise _stops(method, what) from error
                graph.state.update(before)
        else:
            return None, 0
        if call.is_extreme and not all(map(is_finite, [*expected, *graph.state.values()])):
            graph.state.update(before)  # the method overflows, so there is nothing to compare
            return None, work
        graph.see_states(before)
        if any(map(_has_finite, expected)):
            self._finite.add(method.name)
        self._note(method, call.name, leaves, expected, before)
        try:
            actual = session.call(method.name, leaves)
        except Undefined as error:
            if call.name == FIRST:
                raise CannotRun(str(error)) from error
            for made in (self._history, self.calls):
                made.pop()
            graph.state.update(before)
            return None, work
        except EtbuildError as error:
            if _NO_MEMORY in str(error):
                raise CannotRun(f"{_WITHOUT_MEMORY} in {call.name}") from error
            return self._of_call(method, f"{error} (in {call.name})", "runtime"), work
        numbers, wanted = map(method.numbers, (actual, expected))
        found = self._wrong(numbers, wanted, method, lambda each: method.numbers(each.outputs))
        if not found and (laid := layout.wrong(actual, expected)):
            return self._of_call(method, f"{_DIFFERS} {call.name}: {chr(10).join(laid)}", "layout"), work
        if found:
            node = None if all(map(is_finite, expected)) else self._overflow(method, leaves, before)
            differs = _DIFFERS if node is None else _OVERFLOWS
            wrong = self._of_call(method, f"{differs} {call.name}: {chr(10).join(found)}")
            return replace(wrong, overflows=node), work
        worst, count = self.agreement.get(method.name, (math.inf, 0))
        ratio = math.inf if call.is_extreme else accuracy.worst_ratio(numbers, wanted)
        self.agreement[method.name] = min(worst, ratio), count + 1
        return None, work

    def wrong_export(self, calls: Sequence[Call], expected: Sequence[Any], differs: str) -> Wrong | None:
        """Judges the last one of some calls, in which the model computes something else than the exported method.

        Args:
            calls: All calls until this one, with the same methods. It makes those that it has not made yet.
            expected: The outputs of the model.
            differs: How those of the exported method differ.

        Returns:
            The wrong call; None if other roundings explain the difference.
        """
        methods = {method.name: method for method in self._methods}
        for name, label, leaves, exported in calls[len(self._history) :]:
            before = {key: value.clone() for key, value in self._replayed[name].state.items()}
            self._replayed[name].call(leaves)
            self._note(methods[name], label, leaves, exported, before)
        name, label, _, exported = calls[-1]
        if not self._wrong(expected, exported, methods[name], lambda sample: sample.outputs):
            return None
        return self._of_call(methods[name], f"{_EXPORT_DIFFERS} {label}: {differs}", "export")

    @cached_property
    def _replayed(self) -> dict[str, Graph]:
        return self._graphs()

    def _note(
        self, method: ComparedMethod, label: str, leaves: list[Any], outputs: list[Any], before: dict[str, torch.Tensor]
    ) -> None:
        self._history.append((method, leaves))
        self._before[method.name] = leaves, before
        self.calls.append((method.name, label, leaves, outputs))

    def _of_call(self, method: ComparedMethod, problem: str, blames: Blamed = "lowering") -> Wrong:
        """The last call of a method, with its problem."""
        last = max(index for index, (each, _) in enumerate(self._history) if each.name == method.name)
        earlier = [(each.name, leaves) for each, leaves in self._history[:last]]
        return Wrong(method.name, problem, *self._before[method.name], earlier, blames)

    @staticmethod
    def _overflow(method: ComparedMethod, leaves: list[Any], before: dict[str, torch.Tensor]) -> str | None:
        """The first node of the exported method whose result in this call is not finite."""
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
        """The problems of values whose errors other roundings do not explain."""
        tolerance, rounds = method.settings.tolerance, is_quantized(method.program)
        found = accuracy.wrong_outputs(actual, expected, tolerance, False, name)
        for count in _SAMPLES if found else ():
            samples = [of(self._sample(number)) for number in range(count)]
            wrong = accuracy.unexplained(actual, expected, samples, tolerance, rounds)
            if not wrong:
                return []
            shows = partial(accuracy.show_rounding, actual, expected, samples, wrong, tolerance)
            shown = count >= _OF_A_PART and (not rounds or shows())
            is_far = partial(accuracy.unexplained, actual, expected, samples, tolerance, rounds, _FAR)
            if shown or (self._sampled > _WORK_OF_SAMPLES and is_far()):
                break
            if rounds and self._sampled > _MUCH_WORK and count < _LARGEST_PARTS[0]:
                samples += [of(self._sample(number)) for number in _LARGEST_PARTS]
                if accuracy.unexplained(actual, expected, samples, tolerance, rounds, _NOT_NEAR):
                    break
        return found

    def _sample(self, number: int) -> _Sample:
        """A sample that has made all calls of the history. Without state, it makes only the last one."""
        if number not in self._samples:
            rounding = Rounding(number, Rounding.OF_STEP * _LARGER_PART ** (number // _OF_A_PART))
            self._samples[number] = _Sample(self._graphs(), rounding)
        sample = self._samples[number]
        missing = self._history[sample.calls :]
        for method, leaves in missing if self._have_states else missing[-1:]:
            sample.outputs, work = sample.call(method.name, leaves)
            self._sampled += work
            if method.name in self._choosers:
                self._choosers[method.name].pay(work)
        sample.calls = len(self._history)
        return sample
