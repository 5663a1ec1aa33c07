"""The files of an export: one directory, and the file of each method, which may be outside the directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etbuild.files import json_file
from etbuild.inputs.source_lines import SourceLines

METHODS, PLAN, LINES, MODULE = "methods", "export_plan.json", "lines.json", "module.json"
CONSTANTS, CONSTANT_TENSORS, WRITTEN = "constants.json", "constants.safetensors", "written.json"
EXAMPLES, MADE, NOTES = "examples.safetensors", "made.safetensors", "notes.json"


@dataclass(frozen=True)
class ExportFiles:
    """The files of an export.

    Attributes:
        directory: The directory that `archive` describes.
        methods: The file of each method, by name. Nothing reads them if `needs_reexport`.
        lines_file: The file with the lines of the sources, if it is outside the directory.
    """

    directory: Path
    methods: dict[str, Path]
    lines_file: Path | None = None

    @classmethod
    def below(cls, directory: Path) -> ExportFiles:
        """The files of an export whose methods are in its directory."""
        return cls(directory, {path.stem: path for path in sorted((directory / METHODS).glob("*.pt2"))})

    @property
    def needs_reexport(self) -> bool:
        """Whether lowering must export the methods, because they could not be saved without weights."""
        return (self.directory / PLAN).exists()

    @property
    def notes(self) -> list[str]:
        """Notes about the methods.

        Raises:
            InputError: The file is damaged.
        """
        path = self.directory / NOTES
        found: list[str] = json_file.read(path, json_file.Format("notes", "step#notes")) if path.exists() else []
        return found

    @property
    def lines(self) -> SourceLines:
        """The source lines of the methods' nodes, for messages. Empty if the file is missing."""
        return SourceLines.read(self.lines_file or self.directory / LINES)
