"""The files that a step is given: sources by import path, and data by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from etbuild.errors import DocumentPath, InputError


@dataclass
class Given:
    """The files that a step may read.

    Attributes:
        sources: Source files by import path, such as `models/backbone.py` for `models.backbone`.
        data: Data files by name.
    """

    sources: dict[str, Path] = field(default_factory=dict)
    data: dict[str, Path] = field(default_factory=dict)

    def find(self, name: str) -> Path | None:
        """The data file with this name; None if there is none."""
        return self.data.get(name)

    def is_folder(self, name: str) -> bool:
        """Whether this is the name of a directory of data files."""
        return any(file.startswith(f"{name}/") for file in self.data)

    def find_data(self, name: str, path: DocumentPath) -> Path:
        """The data file with this name.

        Args:
            name: The name.
            path: The place in the manifest that names the file, for errors.

        Raises:
            InputError: The file is not declared, or does not exist.
        """
        file = self.find(name)
        if file is None:
            raise InputError.at(path, f"`{name}` is not a declared input", attributes=("data",))
        if not is_file(file):
            there = os.path.lexists(file)
            message = f"`{name}` is declared as {file}, which {'is not a file' if there else 'does not exist'}"
            raise InputError.at(path, message, "check the path after `=` of `--data`")
        return file


def is_file(path: Path) -> bool:
    """Whether the path is that of a file. False if the file may not be looked at."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises if it has no permission to look
