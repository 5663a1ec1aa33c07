"""Locates the files of an export: a directory for all methods, and the file of each method there or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

METHODS, PLAN = "methods", "export_plan.json"
CONSTANTS, CONSTANT_TENSORS = "constants.json", "constants.safetensors"


@dataclass(frozen=True)
class ExportFiles:
    """The files of an export.

    Attributes:
        directory: The directory that `archive` describes.
        methods: The file of each method, by name. They are not read if `together`.
    """

    directory: Path
    methods: dict[str, Path]

    @classmethod
    def below(cls, directory: Path) -> ExportFiles:
        """The files of an export whose methods are in its directory."""
        return cls(directory, {path.stem: path for path in sorted((directory / METHODS).glob("*.pt2"))})

    @property
    def together(self) -> bool:
        """Whether lowering must export the methods, because they could not be saved without weights."""
        return (self.directory / PLAN).exists()
