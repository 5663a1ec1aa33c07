"""`tools/find_python.sh` prints an interpreter that the driver supports, or says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools/find_python.sh"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def only_sh(tmp_path: Path) -> str:
    """A PATH with what the script needs, and no Python and no `apt-get`."""
    for command in ("sh", "dirname"):
        (tmp_path / command).symlink_to(Path("/bin", command))
    return str(tmp_path)


def test_a_version_is_found_behind_the_scripts_of_version_managers(only_sh: str, tmp_path: Path) -> None:
    wrapper = tmp_path / f"python{THIS}"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    found = subprocess.check_output([SCRIPT, THIS], env={"PATH": only_sh}, text=True).strip()
    assert found == sys.executable
    assert subprocess.check_output([SCRIPT], env={"PATH": only_sh}, text=True).strip() == found


def test_a_command_of_another_version_is_not_taken(only_sh: str, tmp_path: Path) -> None:
    (tmp_path / "python9.9").symlink_to(sys.executable)
    done = subprocess.run([SCRIPT, "9.9"], env={"PATH": only_sh}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "python9.9-venv" in done.stderr


def test_without_a_python_it_says_what_to_install(only_sh: str) -> None:
    done = subprocess.run([SCRIPT], env={"PATH": only_sh}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Install Python 3.11, 3.12 or 3.13 with its venv module" in done.stderr
