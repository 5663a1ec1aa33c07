"""Saves an exported program without its canonical form, which `torch.export.save` makes but does not save.

The form is made from a deep copy of the whole serialized program, which takes more time than the rest of saving. Its
only purpose is to test whether it can be made. Reading the file back does not need it.
"""

from __future__ import annotations

from typing import Any

from torch._export.serde import serialize

from etbuild.patching import replacing


@replacing(serialize, "canonicalize")
def save_without_canonical_form(program: Any, constants: set[str] | None = None) -> Any:
    """The unchanged program."""
    return program
