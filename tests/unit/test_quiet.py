"""Which messages of libraries are hidden, and when they are shown."""

from __future__ import annotations

import contextlib
import os
import sys

import pytest

from etbuild.processes import library_output


def test_what_is_kept_back_is_shown_if_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with library_output.shown_if_it_fails():
        print("statistics")
    assert capsys.readouterr() == ("", "")
    with contextlib.suppress(SystemExit), library_output.shown_if_it_fails():
        print("a reason")
        sys.exit(1)
    assert capsys.readouterr() == ("", "a reason\n")


def test_what_native_code_writes_is_hidden_inside(capfd: pytest.CaptureFixture[str]) -> None:
    with library_output.native_messages_off():
        os.write(2, b"inside ")
    os.write(2, b"outside")
    assert capfd.readouterr().err == "outside"
