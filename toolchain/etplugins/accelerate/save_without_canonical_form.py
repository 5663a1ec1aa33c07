"""Saves an exported program without making its canonical form, which `torch.export.save` makes and does not save.

The form is made from a deep copy of the whole serialized program, which takes more time than all else in saving. It is
made to test whether it can be made. Reading the file back does not need it.
"""

from __future__ import annotations

from typing import Any

from torch._export.serde import serialize

from etbuild.patching import replacing


@replacing(serialize, "canonicalize")
def save_without_canonical_form(program: Any, constants: set[str] | None = None) -> Any:
    """The program as it is."""
    return program
