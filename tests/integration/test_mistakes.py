"""What `etbuild` says about mistakes: each message names the place, the cause, and what to write.

`make mistakes` makes all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from etbuild.cli import main
from tests.helpers.mistakes import MISTAKES, Mistake, right

DRAWN = ("a branch on data", "a prefix of DataParallel", "two inputs for one")
"""The mistakes with a build that each run of the tests makes."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the program of the right project."""
    root = tmp_path_factory.mktemp("right")
    for name, content in right().items():
        (root / name).write_bytes(content)
    assert main.main(["build", str(root / "net.yaml"), "-o", str(root / "out")]) == 0
    return root / "out"


CASES = [
    pytest.param(each, id=each.name, marks=[pytest.mark.soak] if each.built and each.name not in DRAWN else [])
    for each in MISTAKES
]


def test_there_are_enough() -> None:
    assert len({each.name for each in MISTAKES}) == len(MISTAKES) >= 100


@pytest.mark.parametrize("mistake", CASES)
def test_a_mistake(
    mistake: Mistake,
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, content in {**right(), **mistake.files}.items():
        (tmp_path / name).write_bytes(content)
    if mistake.needs_program:
        shutil.copytree(program, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    try:
        code = main.main([*mistake.command])
    except SystemExit as end:  # argparse itself refuses the command
        code = end.code if isinstance(end.code, int) else 1
    said = capfd.readouterr()
    if report := os.environ.get("MISTAKES"):  # a file for people who judge the messages
        with Path(report).open("a") as file:
            file.write(f"=== {mistake.name} ({code})\n{said.err}\n")
    assert [each for each in mistake.says if each.lower() not in said.err.lower()] == [], said.err
    assert code == mistake.code, said.err
    assert "Traceback" not in said.err
    assert mistake.needs_program or not [*(tmp_path / "out").glob("*")]
