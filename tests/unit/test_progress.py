"""A line for each step on a terminal, and a line every ten seconds elsewhere."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import suppress

import pytest

from etbuild.processes import supervisor
from etkit.local import progress


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[str]:
    """What stays on the screen: a carriage return and the code after it clear the line."""
    shown = [line.split("\r\033[K")[-1] for line in stream.getvalue().split("\n")]
    return [line.replace("\033[32m", "").replace("\033[2m", "").replace("\033[0m", "") for line in shown]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return now


def test_a_step_has_one_line_and_short_ones_have_none(clock: list[float]) -> None:
    stream = Terminal()
    shown = progress.Steps(stream)
    with shown.stage("read the inputs"):
        pass
    with shown.step("export"):
        for name in ("import PyTorch", "create the module", "import PyTorch"):
            with shown.stage(name):
                clock[0] += 1.5
    with shown.stage("make the page"):
        clock[0] += 2
    assert "import PyTorch ..." in stream.getvalue()
    assert lines(stream) == ["✓ export 4.5 s", "✓ make the page 2.0 s", ""]


def test_a_failed_stage_is_named(clock: list[float]) -> None:
    stream = Terminal()
    shown = progress.Steps(stream)
    with pytest.raises(ValueError, match="no"), shown.step("export"), shown.stage("export forward"):
        raise ValueError("no")
    assert "✗" in stream.getvalue()
    assert "export forward" in lines(stream)[0]
    assert "✓" not in stream.getvalue()


def test_without_a_terminal_a_line_says_every_ten_seconds_what_runs(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    said = progress.Spoken()
    for second in range(25):
        clock[0] = 100.0 + second
        said("lower forward" if 3 <= second < 19 else None)
    assert capsys.readouterr().err.splitlines() == ["10 s: lower forward", "20 s: lower forward"]


def test_nobody_reads_the_lines_and_the_command_goes_on(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    said = progress.Spoken()
    clock[0] += 11
    with os.fdopen(writer, "w", 1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        said("export")
        with suppress(BrokenPipeError):
            stream.close()
    clock[0] += 11
    monkeypatch.setattr(sys, "stderr", again := io.StringIO())
    said("export")
    assert again.getvalue() == "22 s: export\n"


def test_a_variable_turns_the_lines_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "observers", [])
    monkeypatch.setenv("ETBUILD_NO_PROGRESS", "1")
    progress.speak()
    assert supervisor.observers == []
    monkeypatch.delenv("ETBUILD_NO_PROGRESS")
    progress.speak()
    progress.speak()
    assert len(supervisor.observers) == 1
