"""docs/licenses.md lists the packages that the locks install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).parents[2] / "tools" / "list_licenses.py"


def test_the_page_of_licences_is_current() -> None:
    done = subprocess.run([sys.executable, str(LIST), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `make licenses`: {done.stderr}"
