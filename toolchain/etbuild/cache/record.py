"""A record of the local cache: lists the files that a step made. A digest reveals any damage to it."""

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
    """The content of an entry is not what was stored."""


class Unreadable(Exception):
    """An entry cannot be read now. It may be undamaged: a failing disk, or a process without free file descriptors,
    does not show that its content is wrong."""


@dataclass(frozen=True)
class Entry:
    """A file in a record: its name, its size in bytes, and its digest."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """The files that a step made. The key is the digest of what the step read."""

    step: str
    key: str
    files: list[Entry]


def write_record(record: Record) -> bytes:
    """Returns a record as two lines: the sha256 of the second line, and the record as canonical JSON."""
    content = {
        "schema": _SCHEMA,
        "step": record.step,
        "key": record.key,
        "files": [asdict(entry) for entry in record.files],
    }
    body = canonical_json(content)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read_record(data: bytes, step: str, key: str) -> Record:
    """Parses a record.

    Raises:
        Damaged: The content is not what was written, or it belongs to another step or key.
    """
    digest, _, body = data.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise Damaged("its digest is wrong")
    try:
        content = json_file.parse(body)
    except ValueError as error:
        raise Damaged(f"it is not a record: {error}") from error
    wrong = json_schema.problems("step#record", content, most=1)
    if wrong:
        raise Damaged(f"it is not a record: {wrong[0].on_one_line()}")
    if (content["step"], content["key"]) != (step, key):
        raise Damaged("it is the record of something else")
    files = [Entry(**entry) for entry in content["files"]]
    for entry in files:
        if not _stays_inside(entry.name):
            raise Damaged(f"it names the file {entry.name!r}")
    return Record(step, key, files)


def _stays_inside(name: str) -> bool:
    """Returns whether a name is a relative path that stays inside the directory that the entry is copied to."""
    path = PurePosixPath(name)
    inside = name == str(path) != "." and not path.is_absolute() and ".." not in path.parts
    return inside and not steers(name)
