"""Bundles a program with test vectors, for devices: inputs, and the outputs of the model in eager PyTorch."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import BuildError, EtbuildError, InputError
from etbuild.exception_text import summary
from etkit.running.testing.cases import Case, Tester
from etplugins.runtime import child
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session, check_inputs, laid_out, register_kernels


@dataclass(frozen=True)
class Vector:
    """A test vector: a call of a method with fresh state.

    Attributes:
        method: The method.
        number: Its number among those of the method, which the runtime asks for.
        case: The name of the test that has the same inputs.
        inputs: The inputs, in the order of the program.
        outputs: The expected outputs; None if a bundle cannot hold them.
        atol: The absolute tolerance, which is large enough for each output.
        rtol: The relative tolerance.
    """

    method: str
    number: int
    case: str
    inputs: list[Any]
    outputs: list[torch.Tensor] | None
    atol: float
    rtol: float


@dataclass(frozen=True)
class Bundle:
    """A bundled program.

    Attributes:
        content: The `.bpte`.
        vectors: Its test vectors.
        left_out: The names of tests that cannot be vectors, each with the reason.
        verified: Whether the runtime here has computed the expected outputs.
    """

    content: bytes
    vectors: list[Vector]
    left_out: dict[str, str]
    verified: bool


def bundle(tester: Tester, files: ProgramFiles, pattern: str | None = None) -> Bundle:
    """Bundles a program with a vector for each test that is one call, and checks the bundle in the runtime.

    Args:
        tester: The tester, which has the tests and the model.
        files: The program.
        pattern: A pattern for the names of tests, in which `*` stands for any text; None for all tests.

    Raises:
        InputError: No test has a name that fits, or the inputs of a test do not fit the program.
        BuildError: The model fails, the runtime computes something else, or no test can be a vector.
    """
    vectors: list[Vector] = []
    left_out: dict[str, str] = {}
    counts: dict[str, int] = {}
    chosen = [each for each in tester.cases if pattern is None or fnmatch.fnmatchcase(each.name, pattern)]
    if not chosen:
        names = ", ".join(each.name for each in tester.cases)
        raise InputError.of(f"no test has the name `{pattern}`", f"the tests are {names}")
    for case in chosen:
        reason = _why_not(case)
        if reason is not None:
            left_out[case.name] = reason
            continue
        (call,) = case.calls
        check_inputs(files, call.method, tester.taken(call.method, call.leaves))
        number = counts.setdefault(call.method, 0)
        counts[call.method] += 1
        vectors.append(_vector(tester, files, case, number))
    if not vectors:
        raise BuildError.of("there are no test vectors", "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    content = _serialized(files, vectors)
    verified = not tester.unavailable()
    if verified:
        _verify(tester, files, content, vectors)
    return Bundle(content, vectors, left_out, verified)


def _why_not(case: Case) -> str | None:
    """Why a test cannot be a vector; None if it can."""
    if len(case.calls) != 1:
        return "a vector is one call"
    other = [value for value in case.calls[0].leaves if not isinstance(value, (torch.Tensor, bool, int, float))]
    return f"a vector cannot have the input {other[0]!r}" if other else None


def _vector(tester: Tester, files: ProgramFiles, case: Case, number: int) -> Vector:
    (call,) = case.calls
    facts, expected = files.method(call.method), tester.expected(call)
    tensors = [_own(value) for value in laid_out(expected, facts["outputs"]) if isinstance(value, torch.Tensor)]
    tolerances = tester.tolerances(call, tensors)
    enough = [each.atol + each.of_largest * _largest(value) for each, value in zip(tolerances, tensors, strict=True)]
    integers = tester.integers(call.method, tensors)
    if any(
        one is not other for one, other in zip(integers, tensors, strict=True)
    ):  # in steps of the integers, and at least one
        larger = tester.integers(call.method, [value + more for value, more in zip(tensors, enough, strict=True)])
        enough = [max(1.0, _largest(one - other)) for one, other in zip(larger, integers, strict=True)]
    return Vector(
        method=call.method,
        number=number,
        case=case.name,
        inputs=[_own(value) for value in laid_out(tester.taken(call.method, call.leaves), facts["inputs"])],
        outputs=integers if len(tensors) == len(expected) else None,
        atol=max(enough, default=0.0),
        rtol=max((each.rtol for each in tolerances), default=0.0),
    )


def _own(value: Any) -> Any:
    """A value with a storage of its own, since a bundle takes the whole storage of a tensor."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _largest(value: torch.Tensor) -> float:
    """The largest finite absolute value of a tensor; 0 if there is none."""
    finite = value[torch.isfinite(value)] if value.is_floating_point() else value
    return float(finite.abs().max()) if finite.numel() and value.dtype != torch.bool else 0.0


def _serialized(files: ProgramFiles, vectors: Sequence[Vector]) -> bytes:
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer

    suites = [
        MethodTestSuite(
            method, [MethodTestCase(each.inputs, each.outputs) for each in vectors if each.method == method]
        )
        for method in sorted({each.method for each in vectors})
    ]
    bundled = BundledProgram(None, suites, pte_file_path=str(files.program))
    content: bytes = serialize_from_bundled_program_to_flatbuffer(bundled)
    return content


def _verify(tester: Tester, files: ProgramFiles, content: bytes, vectors: Sequence[Vector]) -> None:
    """Runs each vector in the runtime, in a child process of its own. Raises BuildError if it computes something
    else."""
    for vector in vectors:
        task = f"running {vector.case}"
        try:
            actual = child.result(task, partial(_outputs, files, vector))
            numbers, wanted = (tester.numbers(vector.method, each) for each in (actual, vector.outputs or []))
            problem = "\n".join(tester.differences(vector.method, numbers, wanted)) if vector.outputs else ""
            # The runtime's own comparison cannot be given named data, and crashes without it.
            if not problem and vector.outputs is not None and not files.named_data:
                problem = child.result(task, partial(_refused, files, content, vector))
        except EtbuildError as error:
            raise BuildError.of(f"the test vector `{vector.case}` fails: {error}") from error
        if problem:
            hint = f"`etbuild test --filter '{vector.case}'` says where it begins; `tests.tolerance` allows more"
            raise BuildError.of(f"the runtime does not compute the outputs of `{vector.case}`: {problem}", hint)


def _outputs(files: ProgramFiles, vector: Vector) -> list[Any]:
    with tempfile.TemporaryDirectory() as scratch:
        return Session(files, Path(scratch)).call(vector.method, vector.inputs)


def _refused(files: ProgramFiles, content: bytes, vector: Vector) -> str:
    """The runtime's message when it compares its outputs with those of the bundle; empty if they are equal enough."""
    register_kernels(files)
    from executorch.extension.pybindings import portable_lib

    held = portable_lib._load_bundled_program_from_buffer(content)
    try:
        held.verify_result_with_bundled_expected_output(vector.method, vector.number, vector.rtol, vector.atol)
    except RuntimeError as error:
        return summary(error)
    return ""
