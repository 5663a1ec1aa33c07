"""The results of a program on its samples and in its tests: `NAME.results.json` beside it.

They are in a file of their own, which no index lists: another processor may round otherwise, and a build has the same
bytes everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file
from etbuild.publishing import artifacts

SUFFIX = ".results.json"
_SCHEMA = "executorch-results/v1"
_LIMITS = "qualify/"  # begins the names of what a variant must reach
_FORMAT = json_file.Format("results", "results", "`etbuild test --results DIR` writes them")


@dataclass(frozen=True)
class Kept:
    """One result.

    Attributes:
        name: What was tested, such as `checks/agreement/top1` or `qualify/size`.
        state: `passed`, `failed` or `skipped`.
        detail: What was measured, or what is wrong.
        measured: Numbers by name. Those that are not finite are left out: JSON has none.
    """

    name: str
    state: str
    detail: str = ""
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """The results of a program.

    Attributes:
        name: The name of the program.
        sha256: The digest of its `.pte`.
        results: The results.
        qualifies: Whether it is a variant that has what its manifest asks for; None if that was not judged. A program
            that does not qualify is not beside its results.
    """

    name: str
    sha256: str
    results: Sequence[Kept]
    qualifies: bool | None = None

    @property
    def listed(self) -> list[dict[str, Any]]:
        """The results as JSON data."""
        return [
            {**asdict(each), "measured": {key: value for key, value in each.measured.items() if math.isfinite(value)}}
            for each in self.results
        ]

    def to_json(self) -> bytes:
        """The content of the file."""
        judged = {} if self.qualifies is None else {"qualifies": self.qualifies}
        content = {"schema": _SCHEMA, "name": self.name, "sha256": self.sha256, **judged, "results": self.listed}
        return f"{json.dumps(content, indent=2)}\n".encode()

    def write(self, directory: Path) -> None:
        """Writes the file into a directory, which is made if it is missing. Results of the same program that these do
        not have stay.

        Raises:
            BuildError: It cannot be written.
        """
        path = directory / f"{self.name}{SUFFIX}"
        kept = of_program(directory, self.name, self.sha256)
        artifacts.replace(path, self.to_json() if kept is None else self.beside(kept).to_json())

    def beside(self, other: Results) -> Results:
        """These results, and those of another file about the same program."""
        own = {each.name for each in self.results}
        judged = self.qualifies is not None  # then these are all limits of the variant
        older = [
            each for each in other.results if each.name not in own and not (judged and each.name.startswith(_LIMITS))
        ]
        qualifies = other.qualifies if self.qualifies is None else self.qualifies
        return Results(self.name, self.sha256, sorted([*older, *self.results], key=lambda each: each.name), qualifies)


def read(path: Path) -> Results:
    """Reads a file of results.

    Raises:
        InputError: It cannot be read, or is something else.
    """
    content: dict[str, Any] = json_file.read(path, _FORMAT)
    results = [Kept(**each) for each in content["results"]]
    return Results(content["name"], content["sha256"], results, content.get("qualifies"))


def of_program(directory: Path, name: str, sha256: str) -> Results | None:
    """The results of a program in a directory; None if there are none, or if they are those of other bytes."""
    path = directory / f"{name}{SUFFIX}"
    if not path.is_file():
        return None
    try:
        found = read(path)
    except InputError:
        return None
    return found if found.sha256 == sha256 and found.name == name else None


def left_out(directory: Path) -> list[Results]:
    """The results in a directory of variants that do not qualify, sorted by name."""
    found = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            results = read(path)
        except InputError:
            continue
        of_name = path.name == f"{results.name}{SUFFIX}"
        if of_name and results.qualifies is False and not path.with_name(f"{results.name}.pte").exists():
            found.append(results)
    return found
