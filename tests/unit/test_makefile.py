"""The recipes of the Makefile are commands that a shell can read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TARGETS = re.findall(r"^([a-z-]+):(?!=)", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("settings", [(), ("PYTHON=3.12",)], ids=["newest", "3.12"])
def test_recipes_can_be_read(settings: tuple[str, ...]) -> None:
    """Nothing runs: make prints the commands, and the shell reads them."""
    assert {"build", "test", "test-all", "venv"} <= set(TARGETS)
    printed = subprocess.check_output(["make", "--dry-run", *settings, *TARGETS], cwd=REPOSITORY, text=True)
    for command in printed.replace("\\\n", " ").splitlines():
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
