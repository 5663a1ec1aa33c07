"""Unhelpful parts of exceptions from other code are cut. The whole text is kept in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from etbuild import exception_text
from etbuild.exception_text import hints, readable, summary

LONG = ValueError("word " * 1000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/errors"


def whole_error(error: Exception) -> str | None:
    return exception_text.whole_error(error, summary(error))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_the_first_paragraph_is_a_line() -> None:
    assert summary(ValueError("\n no\n  luck\n\nlog: /tmp/x")) == "ValueError: no luck"
    assert summary(KeyError()) == "KeyError"


def test_what_a_paragraph_announces_is_shown() -> None:
    assert summary(ValueError("These differ:\n\nOperator: add\nline 3\n\nelse")) == (
        "ValueError: These differ: Operator: add line 3"
    )
    assert summary(ValueError("These differ:")) == "ValueError: These differ:"


class Odd(Exception):
    def __str__(self) -> str:
        raise KeyError


def test_an_error_without_a_text_has_its_name() -> None:
    error = readable(raised(Odd()))
    assert summary(error) == "Odd: its `__str__` raised KeyError"
    assert error.__traceback__ is not None
    assert readable(LONG) is LONG


def test_a_failed_import_tells_its_first_cause() -> None:
    missing = ModuleNotFoundError("No module named '_cffi_backend'", name="_cffi_backend")
    error = ModuleNotFoundError("Could not import module 'AutoImageProcessor'")
    error.__cause__ = ImportError("cannot import soundfile")
    error.__cause__.__cause__ = missing
    first = "ModuleNotFoundError: Could not import module 'AutoImageProcessor'"
    assert summary(error) == f"{first}, because of ModuleNotFoundError: No module named '_cffi_backend'"
    missing.__cause__ = error  # a circle
    assert summary(error).startswith(first)


def test_a_traceback_in_a_message_is_left_out() -> None:
    trace = 'Traceback (most recent call last):\n  File "/a/b.py", line 1, in f\n    g(\n    ^^\nKeyError: 3\n'
    assert summary(ValueError(f"no node\nOriginal exception {trace}")) == "ValueError: no node KeyError: 3"
    assert summary(ValueError(f"it failed:\n\n{trace}")) == "ValueError: it failed: KeyError: 3"


def test_a_message_is_cut_between_words() -> None:
    assert summary(ValueError("one two three"), 9) == "ValueError: one two ..."
    assert summary(ValueError("one two three"), 7) == "ValueError: one two ..."
    assert summary(ValueError("x" * 700)) == f"ValueError: {'x' * 600} ..."


def test_nothing_in_a_message_moves_the_cursor() -> None:
    assert summary(ValueError("\x1b[2Jgone \u202e")) == "ValueError: \\x1b[2Jgone \\u202e"


def test_the_whole_error_is_in_a_file_that_is_named(cache: Path) -> None:
    hint = whole_error(raised(ValueError("first\n\nsecond")))
    (path,) = cache.iterdir()
    assert hint == f"the whole error: {path}"
    assert "first\n\nsecond" in path.read_text()
    assert "Traceback" in path.read_text()


def test_the_same_error_is_in_the_same_file(cache: Path) -> None:
    files = {whole_error(raised(ValueError(f"at 0x{address:x}\n\nmore"))) for address in (0x7F01, 0xBEEF)}
    assert len(files) == 1
    assert len(list(cache.iterdir())) == 1


def test_an_error_of_one_line_is_not_written_to_a_file(cache: Path) -> None:
    assert whole_error(raised(ValueError("no\n  luck"))) is None
    assert whole_error(raised(KeyError())) is None
    assert not cache.exists()


def test_without_a_directory_for_files_no_file_is_written(cache: Path) -> None:
    cache.parent.write_text("a file")
    assert whole_error(raised(LONG)) is None


def test_old_errors_are_forgotten(cache: Path) -> None:
    for number in range(exception_text._KEPT + 5):
        whole_error(ValueError(f"{number}\n\nmore"))
    assert len(list(cache.iterdir())) == exception_text._KEPT


def test_hints_are_a_line_each() -> None:
    assert hints(None, None) is None
    assert hints("do this", None, "see that") == "do this\n    see that"
