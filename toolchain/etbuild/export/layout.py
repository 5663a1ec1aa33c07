"""Where an export lies: what its methods have in common in a directory, and each method there or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

METHODS, PLAN = "methods", "export_plan.json"


@dataclass(frozen=True)
class ExportFiles:
    """An export.

    Attributes:
        directory: What all methods have in common, as `saved_export` describes it.
        methods: The file of each method, by name. None of them is read where `together`.
    """

    directory: Path
    methods: dict[str, Path]

    @classmethod
    def below(cls, directory: Path) -> ExportFiles:
        """An export that is whole in its directory."""
        return cls(directory, {path.stem: path for path in sorted((directory / METHODS).glob("*.pt2"))})

    @property
    def together(self) -> bool:
        """Whether the methods could not be saved without weights, so that lowering exports them."""
        return (self.directory / PLAN).exists()
