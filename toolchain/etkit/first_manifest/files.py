"""The files of a folder of Hugging Face."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files
from etbuild.inputs.declared import is_file

CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class Files:
    """The files of a folder, as a manifest in the directory `beside` names them."""

    folder: Path
    beside: Path

    def has(self, file: str) -> bool:
        """Whether the folder has a file."""
        return is_file(self.folder / file)

    def json(self, file: str) -> dict[str, Any]:
        """The content of a JSON file; empty if there is none."""
        return read_json(self.folder / file, CONFIG_BYTES, "a JSON file of transformers") if self.has(file) else {}

    def named(self, file: str) -> str:
        """The name of a file, relative to the manifest's directory if the folder is below it, or else to the folder.
        Refuses a name that a manifest cannot have."""
        below = self.folder.resolve().is_relative_to(self.beside.resolve())
        prefix = self.folder.resolve().relative_to(self.beside.resolve()) if below else Path()
        name = (prefix / file).as_posix()
        if not file or not re.fullmatch(r"(?!/)[A-Za-z0-9_./+@ -]+", name) or ".." in name.split("/"):
            raise InputError.of(
                f"{self.folder}: {json.dumps(file)[:100]} is not a name for a manifest", "rename the file"
            )
        return name


def read_json(path: Path, limit: int, what: str) -> dict[str, Any]:
    """The content of a JSON file that holds an object. Infinite numbers may be in it, as transformers writes them.

    Args:
        path: The file.
        limit: How many bytes it may have.
        what: What it should be, for errors.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    names = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}  # transformers writes these
    try:
        content = json_file.parse(regular_files.read(path, limit), names)
    except OSError as error:
        raise InputError.of(f"{path}: cannot be read: {error.strerror}", f"it should be {what}") from None
    except ValueError as error:
        raise InputError.of(f"{path}: not {what}: {error}") from None
    if not isinstance(content, dict):
        raise InputError.of(f"{path}: not {what}: it is not a JSON object")
    return content
