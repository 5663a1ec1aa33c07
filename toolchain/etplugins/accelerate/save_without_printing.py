"""Saves an exported program without printing its graph. For a debug message, `torch.export.save` makes the code of the
whole method, even if debug messages are off."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from etbuild.patching import replacing


@replacing(GraphModule, "print_readable")
def save_without_printing(*arguments: Any, **options: Any) -> str:
    """No text. While a program is saved, no code of others runs, which might print a graph."""
    return ""
