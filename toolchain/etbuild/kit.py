"""Imports from `etkit`, which looks at, tests and ships what this package builds. The driver of an action has none."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module(name: str) -> ModuleType | None:
    """Imports a module of `etkit`, from beside this package, so that both are of one version.

    Args:
        name: Its name in `etkit`, such as `cli`.

    Returns: The module, or None in an action.
    """
    root = Path(__file__).parents[1] / "etkit"
    if "etkit" not in sys.modules:
        file = root / "__init__.py"
        spec = importlib.util.spec_from_file_location("etkit", file, submodule_search_locations=[str(root)])
        if spec is None or spec.loader is None or not file.exists():
            return None
        sys.modules["etkit"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["etkit"])
    return importlib.import_module(f"etkit.{name}")
