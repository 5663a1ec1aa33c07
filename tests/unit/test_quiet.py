"""Which messages of libraries are hidden, and when they are shown."""

from __future__ import annotations

import contextlib
import os
import sys

import pytest

from etbuild.surroundings import library_output


def test_hidden_output_is_shown_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with library_output.shown_if_it_fails():
        print("statistics")
    assert capsys.readouterr() == ("", "")
    with contextlib.suppress(SystemExit), library_output.shown_if_it_fails():
        print("a reason")
        sys.exit(1)
    assert capsys.readouterr() == ("", "a reason\n")


def test_output_of_native_code_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with library_output.native_messages_off():
        os.write(2, b"inside ")
    os.write(2, b"outside")
    assert capfd.readouterr().err == "outside"
