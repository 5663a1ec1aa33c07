"""Writes the pages in `docs/reference/` from the schemas, the command line, the rules and the Python sources.

Nothing here imports torch or ExecuTorch, and the rules and the Python interface are read without running the driver.
"""

from __future__ import annotations

from pathlib import Path

from tools.reference import backend_options, command_line, facts, limits, manifest, python_names, rules
from tools.reference.markdown import placed

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "reference"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def pages() -> dict[str, str]:
    """Returns the content of each page by its path in `docs/reference`: of each index, and of the pages in its
    folder."""
    written = {
        **backend_options.pages(ROOT),
        **command_line.pages(),
        "limits.md": limits.page(),
        **manifest.pages(ROOT),
        **python_names.pages(ROOT),
        **rules.pages(ROOT),
    }
    return {name: placed(name, text) for name, text in written.items()}


def fact_files() -> dict[str, str]:
    """Returns the content of files with facts that build rules load, by the path of the file in the repository."""
    return facts.files(ROOT)
