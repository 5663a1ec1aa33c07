"""How errors are made, found in the manifest, and folded."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from etbuild.errors import BuildError, DocumentPath, EtbuildError, InputError, Position, Problem, counted
from etbuild.folding import folded, listed
from etbuild.foreign_errors import foreign_error, from_exception, system_error, wrap_library_errors, wrap_system_errors
from etbuild.manifest.positions import located

LINE = Position("m.yaml", 3, 5)


def shown(problems: list[Problem]) -> list[str]:
    return [str(problem) for problem in folded(problems)]


def test_an_error_is_at_a_path_at_a_position_or_at_no_place() -> None:
    assert str(InputError.at(("methods", "f", 0), "wrong", "do this")) == "methods.f[0]: wrong\n    do this"
    assert str(InputError.at(LINE, "wrong")) == "m.yaml:3:5: wrong"
    assert str(BuildError.of("wrong", "do this")) == "wrong\n    do this"
    assert InputError.at((), "wrong", at_key=True).problems[0].at_key
    assert type(BuildError.at((), "wrong")) is BuildError


def test_one_thing_is_counted_without_a_plural() -> None:
    for number in (0, 2):
        counts = [counted(number, what) for what in ("token", "entry", "key")]
        assert counts == [f"{number} tokens", f"{number} entries", f"{number} keys"]
    assert [counted(1, what) for what in ("token", "entry", "key")] == ["1 token", "1 entry", "1 key"]
    assert counted("1", "call") == "1 call"  # a number of a page


def test_an_inherited_value_is_located_where_the_manifest_sets_it() -> None:
    common: DocumentPath = ("executorch", "memory_planning", "alignment")
    own: DocumentPath = ("methods", "f", "memory_planning", "alignment")
    of_method: dict[DocumentPath, Position] = {("methods", "f"): LINE}
    assert str(located(InputError.at(own, "wrong"), {**of_method, common: Position("m.yaml", 9, 1)})) == (
        "m.yaml:9:1: executorch.memory_planning.alignment: wrong"
    )
    both = {own: LINE, common: Position("m.yaml", 9, 1)}
    assert str(located(InputError.at(own, "wrong"), both)).startswith("m.yaml:3:5: methods.f.memory_planning.")
    assert str(located(InputError.at(own, "wrong"), of_method)).startswith("m.yaml:3:5: methods.f.memory_planning.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--max-bytes 4: too few", "`max_bytes` 4: too few"),
        ("`--max-bytes` is too small", "`max_bytes` is too small"),
        ("`--set layers=four`: expected a number", "`parameters` `layers=four`: expected a number"),
        ("--max-bytes goes with --embed", "`max_bytes` goes with --embed"),
        ("--max-bytes-of-all, x--set and --setting stay", "--max-bytes-of-all, x--set and --setting stay"),
    ],
)
def test_an_option_that_a_rule_made_from_an_attribute_is_called_like_the_attribute(text: str, expected: str) -> None:
    options = {"--max-bytes": "max_bytes", "--set": "parameters"}
    problem = Problem(text, hint=text).in_rule("//:net", "bazel run //:etbuild --", options)
    assert (problem.message, problem.hint) == (expected, expected)


def test_up_to_three_problems_at_one_place_are_all_shown() -> None:
    problems = [Problem(f"`{name}` is missing", ("model",)) for name in "abc"]
    assert shown(problems) == ["model: `a` is missing", "model: `b` is missing", "model: `c` is missing"]


def test_many_problems_at_one_place_become_one_that_names_some() -> None:
    problems = [Problem(f"`x{n}` float32[{n}, {n}] is missing in `f`", ("model",), "add it") for n in range(300)]
    assert shown(problems) == [
        "model: `x0` float32[0, 0] is missing in `f`\n"
        "    add it\n"
        "    299 more such problems here: `x1`, `x2`, `x3`, `x4`, `x5` and 294 more"
    ]


def test_kinds_and_places_are_folded_apart_and_stay_in_order() -> None:
    missing = [Problem(f"`{n}` is missing", ("a",)) for n in range(5)]
    unknown = [Problem(f"`{n}` is unknown", ("a",)) for n in range(5)]
    elsewhere = [Problem(f"`{n}` is missing", ("b", n)) for n in range(13)]
    heads = [line.partition("\n")[0] for line in shown([*unknown, *missing, *elsewhere])]
    assert heads == [
        "a: `0` is unknown",
        "a: `0` is missing",
        *(f"b[{n}]: `{n}` is missing" for n in range(9)),
        "b[9]: 4 more such problems, the first of them here",
    ]


def test_different_dtypes_are_different_kinds() -> None:
    problems = [Problem(f"`x{n}` is {kind}") for kind in ("float16", "float32") for n in range(9)]
    assert len(shown(problems)) == 2


def test_notes_without_a_place_are_folded_too() -> None:
    notes = [
        Problem(f"the parameter `x{n}` has {n + 2:,} NaN of 4,096 elements; find what made them") for n in range(50)
    ]
    [note] = shown(notes)
    assert note.startswith(
        "the parameter `x0` has 2 NaN of 4,096 elements; find what made them\n    49 more such problems"
    )


def test_names_are_listed_with_the_number_of_the_others() -> None:
    assert listed(["a"]) == "`a`"
    assert listed(["a", "b", "c"]) == "`a`, `b` and `c`"
    assert listed(["a", "b", "c"], 2) == "`a`, `b` and 1 more"


def test_an_exception_of_a_library_becomes_one_of_ours() -> None:
    with pytest.raises(InputError) as caught, wrap_library_errors(InputError, ("model",), "cannot read `f`", "try g"):
        raise KeyError("x")
    assert str(caught.value) == "model: cannot read `f`: KeyError: 'x'\n    try g"
    assert isinstance(caught.value.__cause__, KeyError)
    error = from_exception(OSError("long text"), BuildError, None, "writing", said="it is full")
    assert str(error).startswith("writing: it is full\n    the whole error: ")


@pytest.mark.parametrize("error", [BuildError.of("ours"), KeyboardInterrupt()], ids=["ours", "Ctrl-C"])
def test_errors_of_ours_and_interrupts_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, wrap_library_errors(InputError, None, "reading"):
        raise error
    assert caught.value is error


def test_a_library_that_exits_is_an_error() -> None:
    with pytest.raises(EtbuildError, match="reading: SystemExit: 3"), wrap_library_errors(InputError, None, "reading"):
        raise SystemExit(3)


def test_errors_of_the_system_are_converted_and_bugs_are_not() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x")
    with pytest.raises(BuildError, match=r"(?s)/x: No space left on device.*is the disk full"), wrap_system_errors():
        raise full
    with pytest.raises(FileNotFoundError), wrap_system_errors():
        raise FileNotFoundError(errno.ENOENT, "no")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EAGAIN, "no fork"), "cannot start a process: no fork\n    too many processes run"),
        (OSError(errno.ENOMEM, "no fork"), "cannot get memory: no fork"),
        (OSError(errno.EFBIG, "too large"), "cannot use a file: too large\n    is there a limit of the size of files"),
        (RuntimeError("can't start new thread"), "cannot start a thread\n    too many processes run"),
        (ModuleNotFoundError("no", name="yaml"), "cannot import `yaml`\n    the package is not installed: `pip check`"),
        (
            ImportError("failed to map segment", name="torch._C"),
            "cannot import `torch._C`: .*\n    there is too little m",
        ),
        (ImportError("cannot import name x", name="torch.x"), "cannot import `torch.x`: .*\n    does its version fit"),
    ],
)
def test_a_problem_of_the_machine_is_told_as_one(error: Exception, message: str) -> None:
    assert re.match(message, str(system_error(error)))


@pytest.mark.parametrize("error", [ImportError("no", name="etbuild.x"), ImportError("no"), OSError("no")], ids=str)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    assert system_error(error) is None


class Own(BaseException):
    """As a model, or a library in Rust, may have it."""


class Ours(BaseException):
    __module__ = "etplugins.templates.unbound"


def test_what_no_code_of_ours_raises_is_an_error_of_others() -> None:
    assert str(foreign_error(Own("no entry"))) == "a library, or code of the model, failed: Own: no entry"
    for error in (Ours(), ValueError("no"), KeyboardInterrupt(), BuildError.of("ours")):
        assert foreign_error(error) is None


def test_a_full_disk_names_the_file_that_was_written(tmp_path: Path) -> None:
    def failing() -> None:
        file = (tmp_path / "net.pte").open("wb")
        other = (tmp_path / "net.pte").open("rb")
        with file, other:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space") as caught:
        failing()
    error = system_error(caught.value)
    assert error is not None
    assert str(error.problems[0]) == f"{tmp_path}/net.pte: No space left on device\n    is the disk full?"
