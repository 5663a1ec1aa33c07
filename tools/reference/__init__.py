"""Writes the pages in `docs/reference/` from the schemas, the command line, the rules and the Python sources.

Nothing here imports torch or ExecuTorch, and the rules and the Python interface are read without running the driver.
"""

from __future__ import annotations

from pathlib import Path

from tools.reference import backend_options, command_line, completions, limits, manifest, modules, python_names, rules

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "reference"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
COMPLETIONS = ROOT / "toolchain" / "etkit" / "completions"


def pages() -> dict[str, str]:
    """Returns the content of each page by its file name."""
    return {
        "backend-options.md": backend_options.page(ROOT),
        "command-line.md": command_line.page(),
        "limits.md": limits.page(),
        "manifest.md": manifest.page(ROOT),
        "modules.md": modules.page(ROOT),
        "python.md": python_names.page(ROOT),
        "rules.md": rules.page(ROOT),
    }


def completion_files() -> dict[str, str]:
    """Returns the code that completes `etbuild` in each shell, by its file name."""
    return completions.files()
