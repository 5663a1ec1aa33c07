"""The first target in the README has the output that the README shows."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from etbuild.cli import main

from .conftest import Build

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def test_the_first_target(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    made = build(block("yaml"), model=block("python"))
    assert made.code == 0
    # The index contains the driver's digest, which changes with the driver.
    [row] = re.findall(r"net\.pte +(.*)$", made.out, re.MULTILINE)
    assert re.search(rf"^    out/net\.pte +{re.escape(row)}$", README, re.MULTILINE)
    assert main.main(["inspect", str(made.directory / "net.pte")]) == 0
    shown = capfd.readouterr().out.partition("\n\nbytes")[0]
    assert textwrap.indent(shown, "    ") in README
