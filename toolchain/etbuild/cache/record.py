"""A record of the local cache: which files a step made, in a form in which any damage is noticed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from etbuild import json_schema
from etbuild.errors import steers
from etbuild.files import json_file
from etbuild.files.digests import canonical_json

_SCHEMA = "executorch-cache-record/v1"
DIGEST = re.compile(r"[0-9a-f]{64}")


class Damaged(Exception):
    """An entry that is not what was stored."""


class Unreadable(Exception):
    """An entry that cannot be read now. It may be sound: a disk that fails, or a process without file descriptors, says
    nothing of its content."""


@dataclass(frozen=True)
class Entry:
    """A file of a record."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """What a step made: its files, by what it read."""

    step: str
    key: str
    files: list[Entry]


def write_record(record: Record) -> bytes:
    """One line with the sha256 of the next one, which is canonical JSON."""
    content = {
        "schema": _SCHEMA,
        "step": record.step,
        "key": record.key,
        "files": [asdict(entry) for entry in record.files],
    }
    body = canonical_json(content)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read_record(data: bytes, step: str, key: str) -> Record:
    """The record of a key.

    Raises:
        Damaged: It is not what was written, or the record of something else.
    """
    digest, _, body = data.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise Damaged("it does not have its own digest")
    try:
        content = json_file.parse(body)
    except ValueError as error:
        raise Damaged(f"it is no record: {error}") from error
    wrong = json_schema.problems("step#record", content, most=1)
    if wrong:
        raise Damaged(f"it is no record: {wrong[0].on_one_line()}")
    if (content["step"], content["key"]) != (step, key):
        raise Damaged("it is the record of something else")
    files = [Entry(**entry) for entry in content["files"]]
    for entry in files:
        if not _stays_inside(entry.name):
            raise Damaged(f"it names the file {entry.name!r}")
    return Record(step, key, files)


def _stays_inside(name: str) -> bool:
    """Whether a name leads to a file of the directory that the entry is copied to, and nowhere else."""
    path = PurePosixPath(name)
    inside = name == str(path) != "." and not path.is_absolute() and ".." not in path.parts
    return inside and not steers(name)
