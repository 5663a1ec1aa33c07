"""Locates the files of an export: a directory for all methods, and the file of each method there or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etbuild.inputs.source_lines import SourceLines

METHODS, PLAN, LINES, MODULE = "methods", "export_plan.json", "lines.json", "module.json"
CONSTANTS, CONSTANT_TENSORS, WRITTEN = "constants.json", "constants.safetensors", "written.json"
EXAMPLES = "examples.safetensors"


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

    @property
    def lines(self) -> SourceLines:
        """The lines of the sources that the methods come from, for messages. `lines_beside` says where they may be."""
        inside = self.directory / LINES
        return SourceLines.read(inside) if inside.exists() else lines_beside(self.directory / MODULE)


def lines_beside(file: Path) -> SourceLines:
    """The lines of the sources, if `etbuild export --lines NAME.export.lines.json` wrote them beside an export.

    Only messages name them. They are not an input of a step, so that a comment in a source changes no key.

    Args:
        file: `NAME.export/module.json` or `NAME.export_inputs.json`. It may be a link to that file, as in Bazel's
            sandbox.
    """
    real = file.resolve()
    export = real.parent if real.name == MODULE else real.with_name(real.name.removesuffix("_inputs.json"))
    return SourceLines.read(export.with_name(f"{export.name}.lines.json"))
