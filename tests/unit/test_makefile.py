"""The recipes of the Makefile are commands that a shell can read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

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


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_the_workflows_run_targets_that_are_there(path: Path) -> None:
    """GitHub runs what `.ci/run` and developers run."""
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    commands += [command for job in jobs for command in job.get("strategy", {}).get("matrix", {}).get("command", [])]
    words = [word for command in commands if command.startswith("make ") for word in command.split()[1:]]
    called = {word for word in words if re.fullmatch("[a-z][a-z-]*", word)}
    assert called
    assert called <= {*TARGETS}
