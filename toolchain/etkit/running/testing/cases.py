"""The tests of a program: its methods on inputs, and metrics."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from etbuild import plugins
from etbuild.errors import BuildError, CheckError, DocumentPath, EtbuildError, InputError, Problem, counted, format_path
from etbuild.export import example_values
from etbuild.inputs.source_lines import SourceLines
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import active_finder, load_callable, wrap_user_error
from etbuild.model.tensor_bytes import dtype_name
from etbuild.plan.plan import Plan
from etkit.running.testing import agreements, layers, prompts, random_inputs, text_scores
from etkit.running.testing.reference import MethodCall, Reference
from etkit.running.testing.results import Result
from etplugins.comparison import accuracy
from etplugins.comparison.locate import Search, WrongCall
from etplugins.comparison.parts import Tolerance
from etplugins.model_tests import parts as planned
from etplugins.model_tests.parts import Agreement, Metric, PromptsTest, TestPlan, TextTest
from etplugins.runtime import child
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session, unavailable

if TYPE_CHECKING:
    from etkit.running.testing.run import TestOptions
    from etplugins.samples.reading import Sample

_RunModel = Callable[[Sequence[MethodCall]], list[list[Any]]]
Test = tuple[str, Callable[[], Result]]
_NAMES_OF_VALUES = {
    "value": "value",
    "value_unquantized": "value unquantized",
    "value_in_pytorch": "in PyTorch",
}
_RANDOM_HINT = "random inputs may not fit the model: write `ranges` or `random: 0` under `tests.methods`"


@dataclass(frozen=True)
class Case:
    """Calls that run one after the other, beginning with fresh state.

    Attributes:
        name: The name of the test.
        calls: The calls.
        is_random: Whether the inputs are random.
        paths: The place of each call in the manifest; empty if the manifest has no such case.
    """

    name: str
    calls: Sequence[MethodCall]
    is_random: bool = False
    paths: Sequence[DocumentPath] = ()


class Tester:
    """Tests one program.

    Args:
        plan: What it was built from.
        tests: What is tested.
        files: The program.
        context: The declared inputs.
        options: How the tests run.
    """

    def __init__(
        self, plan: Plan, tests: TestPlan, files: ProgramFiles, context: StepContext, options: TestOptions
    ) -> None:
        self._plan, self._tests, self._files, self._context = plan, tests, files, context
        self._at_once, self._positions = options.at_once, options.positions
        self._located: set[str] = set()
        self._reference = Reference.of_plan(plan, context)
        self._cases = [*self._make_cases()]
        compares_metrics = any(each.max_change is not None for each in tests.metrics) or bool(tests.agreements)
        if compares_metrics or any(map(self._reference.is_quantized, plan.methods)):
            self._reference.prepare_float()

    def unavailable(self) -> list[str]:
        """The backends that the program calls, but the runtime here lacks."""
        found: list[str] = child.result("the runtime", partial(unavailable, self._files))
        return found

    @property
    def cases(self) -> Sequence[Case]:
        """The cases, in the order of the tests."""
        return self._cases

    def expected(self, call: MethodCall) -> list[Any]:
        """The outputs of the model for one call with fresh state."""
        found: list[list[Any]] = child.result("PyTorch", partial(self._reference.run, [call]))
        return found[0]

    def taken(self, method: str, leaves: Sequence[Any]) -> list[Any]:
        """Inputs as the program takes them: see `Reference.taken`."""
        return self._reference.taken(method, leaves)

    def numbers(self, method: str, outputs: Sequence[Any]) -> list[Any]:
        """Outputs of the program as numbers: see `Reference.numbers`."""
        return self._reference.numbers(method, outputs)

    def integers(self, method: str, outputs: Sequence[Any]) -> list[Any]:
        """Outputs as the program returns them: see `Reference.integers`."""
        return self._reference.integers(method, outputs)

    def differences(
        self, method: str, actual: Sequence[Any], expected: Sequence[Any], name: str = "output"
    ) -> list[str]:
        """The problems of outputs, or of other values of a call; empty if they are right."""
        tolerance, quantized = self._tests.methods[method].tolerance, self._reference.is_quantized(method)
        return accuracy.differences(actual, expected, tolerance, quantized, name)

    def tolerances(self, call: MethodCall, expected: Sequence[torch.Tensor]) -> list[Tolerance]:
        """How far each output of a call may be from the expected one."""
        of_method = self._tests.methods[call.method].tolerance
        quantized = self._reference.is_quantized(call.method)
        return [accuracy.default_tolerance(each, quantized) if of_method is None else of_method for each in expected]

    def names(self) -> list[str]:
        """The names of the tests, without the checks of the build."""
        return [name for name, _ in self.tests(False)]

    def tests(self, locate: bool) -> list[Test]:
        """The tests by name.

        Args:
            locate: Whether to search for the cause of a failure.
        """
        cases: list[Test] = [(case.name, partial(self._test, case, locate)) for case in self._cases]
        cases += [(f"checks/metric/{each.factory}", partial(self._measure, each)) for each in self._tests.metrics]
        cases += [(f"checks/agreement/{each.measure}", partial(self.agree, each)) for each in self._tests.agreements]
        text, asked = self._tests.text, self._tests.prompts
        cases += [] if text is None else [(f"checks/text/{text.file}", partial(self._compare_text, text))]
        return cases + ([] if asked is None else [(f"checks/prompts/{asked.file}", partial(self._ask, asked))])

    # The cases

    def _make_cases(self) -> Iterator[Case]:
        reference = self._reference
        for name, examples in reference.methods.items():
            yield Case(f"{name}/example", [MethodCall(name, examples)])
            if reference.keeps_state(name):
                yield Case(f"{name}/example-twice", [MethodCall(name, examples), MethodCall(name, examples)])
            method = reference.planned(name)
            of_method = self._tests.methods[name]
            if of_method.random and random_inputs.all_alike(of_method, method, examples):
                hint = f"write `tests.methods.{name}.ranges`"
                print(f"note: all random integers for `{name}` are that of its example: {hint}", file=sys.stderr)
            for label, inputs in random_inputs.cases(name, method, of_method, self._tests.seed, examples):
                yield Case(f"{name}/{label}", [MethodCall(name, inputs)], is_random=True)
            if name in self._tests.sampled:
                calls_of_samples = [MethodCall(name, (sample.inputs, {})) for sample in self._samples(name)]
                yield Case(f"{name}/samples", calls_of_samples)
        for name, calls in self._tests.cases.items():
            paths = [call.path for call in calls]
            yield Case(f"cases/{name}", [self._declared(call) for call in calls], paths=paths)

    def _samples(self, method: str) -> list[Sample]:
        """The samples of a method, without their labels."""
        name = self._tests.sampled[method]
        return self._read(self._tests.samples[name].replace(labels=None), ("methods", method, "samples"))

    def _read(self, samples: Any, path: DocumentPath) -> list[Sample]:
        """Reads a list of samples."""
        read: Callable[..., list[Sample]] = plugins.load("samples", "files").read
        return read(samples, path, self._context)

    def _declared(self, call: planned.Call) -> MethodCall:
        """Makes a call of the manifest. Raises InputError if its inputs do not fit the method."""
        module = self._reference.module(call.method)
        make = example_values.make_one
        given = tuple(
            make(example, module, (*call.path, "inputs", index), self._context)
            for index, example in enumerate(call.inputs)
        )
        keywords = {
            name: make(example, module, (*call.path, "kwargs", name), self._context)
            for name, example in call.kwargs.items()
        }
        positional, by_name = self._reference.methods.get(call.method, (given, keywords))
        if len(given) != len(positional):
            message = f"`{call.method}` takes {len(positional)} positional inputs, and this call has {len(given)}"
            raise InputError.at((*call.path, "inputs"), message, "write them as `example_inputs` has them")
        if keywords.keys() != by_name.keys():
            names = ", ".join(by_name) or "none"
            raise InputError.at((*call.path, "kwargs"), f"the keyword inputs of `{call.method}` are: {names}")
        return MethodCall(call.method, (given, {name: keywords[name] for name in by_name}))

    # One case

    def _test(self, case: Case, locate: bool) -> Result:
        """Runs a case in the runtime, in eager PyTorch, and if needed without quantization. Compares the outputs."""
        names = [call.method for call in case.calls]
        tasks: dict[str, Callable[[], Any]] = {
            "the runtime": partial(self._run, case),
            "PyTorch": partial(self._run_eager, case),
        }
        if any(map(self._reference.is_quantized, names)):
            tasks["PyTorch without quantization"] = lambda: self._reference.run_float(case.calls)
        try:
            found = child.run(tasks, self._at_once)
        except EtbuildError as error:
            return Result(case.name, "failed", self._why_not(case, error))
        (actual, state), (expected, kept) = found["the runtime"], found["PyTorch"]
        exact = found.get("PyTorch without quantization", expected)
        measured = self._measured(actual, expected, exact)
        for number, call in enumerate(case.calls):
            problem = "\n".join(self.differences(call.method, actual[number], expected[number]))
            if problem:
                where = f"call {number + 1} of {len(case.calls)}, `{call.method}`: " if len(case.calls) > 1 else ""
                limit = self._limit(call.method)
                if self._is_tight(call.method, actual[number], expected[number]):
                    cause = f"{limit}; by the default tolerance, which allows for rounding, the outputs are right"
                else:
                    cause = limit + (self._locate(case, number, expected[number]) if locate else "")
                return Result(case.name, "failed", where + problem + cause, measured=measured)
            problem = self._inexact(call, actual[number], exact[number])
            if problem:
                cause = f"\n{self._layers(call)}" if locate and self._reference.is_quantized(call.method) else ""
                return Result(case.name, "failed", problem + cause, measured=measured)
        problem = self._wrong_state(case.calls[-1].method, state, kept)
        passed = "\n".join(filter(None, [_summary(measured), _shows_little(expected)]))
        return Result(case.name, "failed" if problem else "passed", problem or passed, measured=measured)

    def _limit(self, method: str) -> str:
        """The line that says where the manifest limits the error of a method; empty if it does not."""
        path = self._tests.methods[method].tolerance_path
        place = None if path is None else Problem("", path).located(self._positions).position
        return "" if path is None else f"\nthe limit is `{format_path(path)}`" + (f" at {place}" if place else "")

    def _is_tight(self, method: str, actual: list[Any], expected: list[Any]) -> bool:
        """Whether outputs that are wrong by the manifest's tolerance would be right by the default one."""
        quantized = self._reference.is_quantized(method)
        own = self._tests.methods[method].tolerance is not None
        return own and not accuracy.differences(actual, expected, None, quantized)

    def _why_not(self, case: Case, error: EtbuildError) -> str:
        """The error of a case that cannot run: the model's error if the model refuses the inputs, too."""
        try:
            child.result("PyTorch", partial(self._run_eager, case))
        except EtbuildError as of_model:
            if case.paths:
                return str(self._of_inputs(case, of_model).located(self._positions))
            return f"{of_model}\n{_RANDOM_HINT}" if case.is_random else str(of_model)
        return str(error)

    def _of_inputs(self, case: Case, error: EtbuildError) -> InputError:
        """The error of a model that refuses the inputs of a case, at their place in the manifest."""
        path, call = case.paths[0], case.calls[0]
        said = "; ".join(problem.message for problem in error.problems)
        if len(case.calls) > 1:
            return InputError.at(path[:3], said)
        given = ", ".join(_shapes(call.leaves))
        examples = MethodCall(call.method, self._reference.methods[call.method])
        taken = ", ".join(_shapes(examples.leaves))
        hint = f"the inputs are {given}, and the example inputs are {taken}" if given != taken else None
        inputs = (*path, "inputs", 0) if len(call.leaves) == 1 and not call.inputs[1] else (*path, "inputs")
        return InputError.at(inputs, said, hint)

    def _run(self, case: Case) -> tuple[list[list[Any]], dict[str, Any]]:
        """The outputs of the program's calls, and its state after them."""
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(self._files, Path(scratch))
            outputs = [self._called(session, call.method, call.leaves) for call in case.calls]
            last = case.calls[-1].method
            return outputs, session.state(last, self._reference.state(last))

    def _called(self, session: Session, method: str, leaves: Sequence[Any]) -> list[Any]:
        """Calls the program with the model's inputs. Returns numbers, also where it returns integers for them."""
        outputs = session.call(method, self._reference.taken(method, leaves))
        return self._reference.numbers(method, outputs)

    def _run_eager(self, case: Case) -> tuple[list[list[Any]], dict[str, Any]]:
        outputs = self._reference.run(case.calls)
        return outputs, self._reference.state(case.calls[-1].method)

    def _inexact(self, call: MethodCall, actual: list[Any], exact: list[Any]) -> str:
        """The limit against the model without quantization that outputs break, as a text; empty if none."""
        limits = self._tests.methods[call.method]
        if limits.max_error is None and limits.min_sqnr is None:
            return ""
        found = accuracy.measure(actual, exact)
        what = f"{found} against the model without quantization; the limit is"
        if limits.max_error is not None and not found.max_error <= limits.max_error:
            return f"checks.max_error: {what} {limits.max_error:g}"
        if limits.min_sqnr is not None and not found.sqnr >= limits.min_sqnr:
            return f"checks.min_sqnr: {what} {limits.min_sqnr:g} dB"
        return ""

    def _wrong_state(self, method: str, state: dict[str, Any], kept: dict[str, Any]) -> str:
        return "\n".join(
            f"after the calls, {text}"
            for name, value in sorted(state.items())
            for text in self.differences(method, [value], [kept[name]], f"state `{name}`")
        )

    def _measured(self, actual: list[list[Any]], expected: list[list[Any]], exact: list[list[Any]]) -> dict[str, float]:
        """Measures how far the outputs of all calls are from the expected ones, and from those without quantization."""
        try:
            all_actual, all_expected, all_exact = (list(chain(*each)) for each in (actual, expected, exact))
            near = accuracy.measure(all_actual, all_expected)
            far = accuracy.measure(all_actual, all_exact) if exact is not expected else None
        except (RuntimeError, ValueError):  # the shapes differ, which the comparison reports
            return {}
        more = {} if far is None else {"max_error_unquantized": far.max_error, "sqnr_unquantized": far.sqnr}
        return {"max_error": near.max_error, "sqnr": near.sqnr, **more}

    def _locate(self, case: Case, number: int, expected: list[Any]) -> str:
        """A text that says where the first wrong call differs from PyTorch, for the first failure of each method."""
        call = case.calls[number]
        if call.method in self._located:
            return ""
        self._located.add(call.method)

        def state() -> dict[str, Any]:
            self._reference.run(case.calls[:number])
            return self._reference.state(call.method)

        try:
            before = child.result("PyTorch", state)
            with self._context.stage(f"search `{call.method}` for the first wrong operator"):
                return f"\n{self._searched(call, before, expected)}"
        except EtbuildError as error:
            return f"\nthe search for the first wrong operator failed: {error}"

    def _searched(self, call: MethodCall, state: dict[str, Any], expected: list[Any]) -> str:
        name = call.method
        program = self._reference.exported(name)
        search, expected = self._search(program, call, state), self._reference.integers(name, expected)
        if not search.differences(search.in_eager(), expected):
            return search.run()
        if self._reference.has_passes:
            plain = self._search(self._reference.exported(name, passes=False), call, state)
            if not plain.differences(plain.in_eager(), expected):
                return f"the passes of `passes.aten` change the results of `{name}`"
        cause = "a branch on `torch.compiler.is_compiling()`, `is_exporting()` or `training` is the usual cause"
        return f"the exported graph of `{name}` computes something else than the model, before it is lowered: {cause}"

    def _search(self, program: ExportedProgram, call: MethodCall, state: dict[str, Any]) -> Search:
        tolerance, quantized = self._tests.methods[call.method].tolerance, self._reference.is_quantized(call.method)
        leaves = self._reference.taken(call.method, call.leaves)
        wrong = WrongCall(call.method, program, leaves, state, tolerance, quantized)
        lines = SourceLines.of_programs({call.method: program}, active_finder().name_of)
        return Search(self._plan.lower_plan, wrong, lines)

    def _layers(self, call: MethodCall) -> str:
        try:
            with self._context.stage(f"measure the layers of `{call.method}`"):
                return str(child.result("the layers", partial(layers.text, self._reference, call)))
        except EtbuildError as error:
            return f"the layers could not be measured: {error}"

    # Metrics

    def _measure(self, metric: Metric) -> Result:
        name = f"checks/metric/{metric.factory}"
        measured = {"value": child.result("the metric", partial(self._value, metric, None))}
        if metric.max_change is not None:
            measured["value_unquantized"] = self._value_in_pytorch(metric, self._reference.run_float)
        problems = _broken(metric, measured)
        if problems:  # find out whether the program is wrong, or the model is not good enough
            try:
                measured["value_in_pytorch"] = self._value_in_pytorch(metric, self._reference.run)
            except EtbuildError as error:
                problems.append(f"the metric could not be computed in PyTorch: {error}")
        numbers = ", ".join(f"{_NAMES_OF_VALUES[key]} {value:.6g}" for key, value in measured.items())
        return Result(name, "failed" if problems else "passed", "; ".join([numbers, *problems]), measured=measured)

    def _value_in_pytorch(self, metric: Metric, run: _RunModel) -> float:
        found: float = child.result("the metric", partial(self._value, metric, run))
        return found

    def agree(self, agreement: Agreement) -> Result:
        """Measures how near the program is to the model without quantization: on each sample of a method, or with its
        example inputs if it has no samples."""
        method = agreement.method or next(iter(self._tests.sampled))
        names, given = ["the example inputs"], [self._reference.methods[method]]
        if method in self._tests.sampled:
            samples = self._samples(method)
            names, given = [sample.name for sample in samples], [(sample.inputs, {}) for sample in samples]
        calls = [MethodCall(method, inputs) for inputs in given]
        case = Case(f"checks/agreement/{agreement.measure}", calls)
        tasks: dict[str, Callable[[], Any]] = {
            "the runtime": lambda: self._run_as_it_takes(calls),
            "PyTorch without quantization": lambda: self._reference.run_float(calls),
        }
        found = child.run(tasks, self._at_once)
        measure = agreements.measure_of(agreement)
        pairs = zip(found["PyTorch without quantization"], found["the runtime"], strict=True)
        values = child.result("the agreement", lambda: [measure(expected, actual) for expected, actual in pairs])
        detail, problems, measured = agreements.judged(agreement, names, values)
        state = "failed" if problems else "passed"
        return Result(case.name, state, "; ".join([detail, *problems]), measured=measured)

    def _run_as_it_takes(self, calls: Sequence[MethodCall]) -> list[list[Any]]:
        """The outputs of the program's calls. Numbers become those of the dtype that it takes: it may be a variant of
        the model, in float16."""
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(self._files, Path(scratch))
            return [session.call(call.method, self._as_taken(call)) for call in calls]

    def _as_taken(self, call: MethodCall) -> list[Any]:
        facts = self._files.method(call.method)["inputs"]
        leaves = call.leaves
        if len(facts) != len(leaves):
            return leaves  # the call says what is wrong
        return [
            leaf.to(getattr(torch, fact["dtype"]))
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and "dtype" in fact
            else leaf
            for leaf, fact in zip(leaves, facts, strict=True)
        ]

    def _compare_text(self, text: TextTest) -> Result:
        work = partial(text_scores.measure, self._plan, text, self._files, self._context)
        measured = child.result("the text", work)
        problems = text_scores.broken(text, measured)
        detail = "\n".join([text_scores.summary(measured), *problems])
        return Result(f"checks/text/{text.file}", "failed" if problems else "passed", detail, measured=measured)

    def _ask(self, asked: PromptsTest) -> Result:
        work = partial(prompts.measure, self._plan, asked, self._files, self._context)
        measured, broken, notes = child.result("the prompts", work)
        problems = CheckError([Problem(*each) for each in broken]).located(self._positions).problems
        detail = "\n".join([prompts.summary(measured), *map(str, problems), *notes])
        return Result(f"checks/prompts/{asked.file}", "failed" if problems else "passed", detail, measured=measured)

    def _value(self, metric: Metric, run: _RunModel | None) -> float:
        """The value of a metric, with `run` for the calls: of the program, or of the model in PyTorch."""
        path = (*metric.path, "factory")
        data: Any = None
        if metric.data is not None:
            data = self._context.inputs.find_data(metric.data, (*metric.path, "data"))
        if metric.samples is not None:
            data = self._read(self._tests.samples[metric.samples], (*metric.path, "samples"))
        compute = load_callable(metric.factory, path)
        with tempfile.TemporaryDirectory() as scratch:
            call = _eager(self._reference, run) if run is not None else None
            called = Caller(call or partial(self._called, Session(self._files, Path(scratch))))
            with wrap_user_error(path, f"`{metric.factory}`"):
                value = compute(called, data, **metric.kwargs)
                if isinstance(value, (str, bytes)):
                    raise TypeError(f"it returned {value!r}, not a number")
                return float(value)


class Caller:
    """The object that a metric gets as `program`.

    Args:
        call: Calls a method by its name with a list of inputs.
    """

    def __init__(self, call: Callable[[str, list[Any]], list[Any]]) -> None:
        self._call = call

    def method(self, name: str) -> Callable[..., list[Any]]:
        """A method of the program as a function. It takes the inputs as arguments, and returns a list of outputs."""
        return lambda *inputs: self._call(name, [*inputs])


def _eager(reference: Reference, run: _RunModel) -> Callable[[str, list[Any]], list[Any]]:
    """Calls methods of the model in PyTorch. The inputs are those of the program, in its order."""
    from torch.utils import _pytree as pytree

    def call(name: str, inputs: list[Any]) -> list[Any]:
        _, structure = pytree.tree_flatten(reference.methods[name], is_leaf=lambda value: value is None)
        if structure.num_leaves != len(inputs):
            raise BuildError.of(f"`{name}` takes {counted(structure.num_leaves, 'input')}, not {len(inputs)}")
        return run([MethodCall(name, pytree.tree_unflatten(inputs, structure))])[0]

    return call


def _shapes(leaves: Sequence[Any]) -> list[str]:
    return [f"{dtype_name(each.dtype)} {[*each.shape]}" for each in leaves if isinstance(each, torch.Tensor)]


def _shows_little(expected: Sequence[Sequence[Any]]) -> str:
    """A note if each expected output has only one number in all calls: a program that ignores its inputs would pass."""
    tensors = [each for outputs in expected for each in outputs if isinstance(each, torch.Tensor) and each.numel() > 1]
    numbers = [each.flatten()[0].item() for each in tensors]
    if not tensors or any(bool((each != number).any()) for each, number in zip(tensors, numbers, strict=True)):
        return ""
    only = ", ".join(dict.fromkeys(f"{number:g}" if isinstance(number, float) else str(number) for number in numbers))
    return f"note: all expected outputs are {only}, so this shows little; other inputs, or `ranges`, may show more"


def _summary(measured: dict[str, float]) -> str:
    """The measured differences of a case for people; empty if nothing was measured."""
    if not measured:
        return ""
    text = str(accuracy.Measured(measured["max_error"], measured["sqnr"]))
    if "sqnr_unquantized" in measured:
        far = accuracy.Measured(measured["max_error_unquantized"], measured["sqnr_unquantized"])
        text += f"; without quantization: {far}"
    return text


def _broken(metric: Metric, measured: dict[str, float]) -> list[str]:
    """The limits that a metric breaks."""
    value, problems = measured["value"], []
    if metric.min is not None and not value >= metric.min:
        problems.append(f"the smallest allowed is {metric.min:g}")
    if metric.max is not None and not value <= metric.max:
        problems.append(f"the largest allowed is {metric.max:g}")
    if metric.max_change is not None:
        change = abs(value - measured["value_unquantized"])
        if math.isnan(change) or change > metric.max_change:
            problems.append(f"the change is {change:.6g}, and the largest allowed is {metric.max_change:g}")
    return problems
