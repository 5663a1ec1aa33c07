"""The files of a folder of Hugging Face."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files
from etbuild.inputs.checkpoints import check_content
from etbuild.inputs.given import is_file

CONFIG_BYTES = 1 << 20
_SHOWN = 100  # characters of a name that a message shows


@dataclass(frozen=True)
class Files:
    """The files of a folder, as a manifest in the directory `beside` names them.

    Attributes:
        folder: The folder.
        beside: The directory of the manifest.
        others: Further directories that the build searches, after that of the manifest. The first one above it counts.
    """

    folder: Path
    beside: Path
    others: tuple[Path, ...]

    @property
    def root(self) -> Path:
        """The directory that names of files are relative to."""
        above = (root for root in (self.beside, *self.others) if _below(self.folder, root) is not None)
        return next(above, self.folder)

    def has(self, file: str) -> bool:
        """Whether the folder has a file."""
        return is_file(self.folder / file)

    def json(self, file: str) -> dict[str, Any]:
        """The content of a JSON file; empty if there is none."""
        return read_json(self.folder / file, CONFIG_BYTES, "a JSON file of transformers") if self.has(file) else {}

    def names(self, file: str) -> str:
        """The name of a file, relative to `root`. The file may be missing. Refuses a name that a manifest cannot
        have."""
        name = ((_below(self.folder, self.root) or Path()) / file).as_posix()
        if not file or not re.fullmatch(r"(?!/)[A-Za-z0-9_./+@ -]+", name) or ".." in name.split("/"):
            shown = json.dumps(file)[:_SHOWN]
            raise InputError.of(f"{self.folder}: {shown} is not a name for a manifest", "rename the file")
        return name

    def named(self, file: str) -> str:
        """The name of a file that the build will read, as `names` returns it. Refuses a file if the build would find
        another one of its name first, or if a download has left something in place of its content."""
        name = self.names(file)
        first = next(root / name for root in (self.beside, *self.others, self.root) if is_file(root / name))
        if not first.samefile(self.folder / file):
            message = f"the build would read {first} in place of {self.folder / file}"
            raise InputError.of(message, "rename one of them, or choose another directory with `-o`")
        _check_content(self.folder / file)
        return name


def _below(folder: Path, root: Path) -> Path | None:
    """The path of a folder relative to a directory above it, as named or with links resolved; None if not below it."""
    for inner, outer in ((folder.absolute(), root.absolute()), (folder.resolve(), root.resolve())):
        if inner.is_relative_to(outer) and ".." not in inner.relative_to(outer).parts:
            return inner.relative_to(outer)
    return None


def _check_content(path: Path) -> None:
    """Refuses what downloads often leave in place of a file."""
    try:
        check_content(str(path), path, ())
    except InputError as error:
        raise InputError([replace(each, path=None) for each in error.problems]) from None


def read_json(path: Path, limit: int, what: str) -> dict[str, Any]:
    """The content of a JSON file that holds an object. Infinite numbers may be in it, as transformers writes them.

    Args:
        path: The file.
        limit: How many bytes it may have.
        what: What it should be, for errors.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    names = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}  # of transformers
    try:
        content = json_file.parse(regular_files.read(path, limit), names)
    except OSError as error:
        raise InputError.of(f"{path}: cannot be read: {error.strerror}", f"it should be {what}") from None
    except ValueError as error:
        raise InputError.of(f"{path}: not {what}: {error}") from None
    if not isinstance(content, dict):
        raise InputError.of(f"{path}: not {what}: it is not a JSON object")
    return content


def positive(*values: object) -> int | None:
    """The first of these values that is an integer from 1 to 2**31 - 1; None if there is none."""
    return next((each for each in values if type(each) is int and 0 < each < 1 << 31), None)
