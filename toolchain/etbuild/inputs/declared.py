"""The declared inputs of a build: sources by import path, and data by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean


@dataclass
class Inputs:
    """What a build may read.

    Attributes:
        sources: Files by import path, `models/backbone.py` for `models.backbone`.
        data: Files by name.
        roots: Directories that are searched for what is not named there: on the command line the manifest's directory
            and each `--root`; in a build system none, since it declares every file.
    """

    sources: dict[str, Path] = field(default_factory=dict)
    data: dict[str, Path] = field(default_factory=dict)
    roots: list[Path] = field(default_factory=list)

    def source(self, name: str) -> Path | None:
        """The source with this import path."""
        return self.sources.get(name) or self._search(name)

    def find(self, name: str) -> Path | None:
        """The data file with this name, if it is declared."""
        return self.data.get(name) or self._search(name)

    def find_data(self, name: str, path: DocumentPath) -> Path:
        """The data file with this name, which the manifest gives at `path`.

        Raises:
            InputError: It is not declared, or there is no such file.
        """
        found = self.find(name)
        if found is not None and not is_file(found):
            there = os.path.lexists(found)
            message = f"`{name}` is declared as {found}, which is {'not a file' if there else 'not there'}"
            raise InputError([Problem(message, path, "check the path after `=` of `--data`")])
        if found is None:
            where = f"looked in: {', '.join(map(str, self.roots))}"
            rule = "list it under `data` of the target; so too the weights of a model that is quantized"
            hint = did_you_mean(name, self.data) or (where if self.roots else rule)
            if any(is_file(root / name) for root in self.roots):
                hint = f"it is a link that leaves its directory: declare it with `--data {name}=FILE`"
            if "=" in name:
                hint = "`--data NAME=FILE` cannot say this name: rename the file, or search its directory with `--root`"
            raise InputError([Problem(f"`{name}` is not a declared input", path, hint)])
        return found

    def only(self, names: Mapping[str, DocumentPath]) -> Inputs:
        """The same sources, and of the data only these: what one step reads, since no more is in its key.

        Raises:
            InputError: One is not declared.
        """
        return Inputs(self.sources, {name: self.find_data(name, path) for name, path in names.items()})

    def _search(self, name: str) -> Path | None:
        for root in self.roots:
            candidate = root / name
            if is_file(candidate) and candidate.resolve().is_relative_to(root.resolve()):
                return candidate
        return None


def is_file(path: Path) -> bool:
    """Whether it is a file that can be looked at."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where it may not look
