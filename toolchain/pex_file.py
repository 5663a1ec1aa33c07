"""Writes a PEX file with the packages of wheels. What a wheel has compressed is copied as it is.

So the same wheels give the same bytes, whatever zlib a machine has. Uses only the standard library.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

_BLOCK = 1 << 20  # bytes
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can have
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")


def write_pex(wheels: list[Path], first_line: str, make_frame: Callable[[str], Path], target: Path) -> None:
    """Writes a PEX file without bytecode. Removes each wheel that is in it, so that the packages are on the disk once.

    Args:
        wheels: The wheels. Of files that two of them have, that of the last one is taken.
        first_line: The line that names the interpreter.
        make_frame: Makes a PEX file without packages: the code that unpacks and starts one. It gets a digest of the
            packages.
        target: The file to write.
    """
    places = {wheel: places_of(wheel) for wheel in wheels}
    owners = {place: wheel for wheel in wheels for place in places[wheel].values() if "__pycache__/" not in place}
    target.write_text(f"{first_line}\n", encoding="utf-8")
    with zipfile.ZipFile(target, "a") as archive:
        writer = _Writer(archive)
        for wheel in wheels:
            writer.add(wheel, {name: place for name, place in places[wheel].items() if owners.get(place) == wheel})
            wheel.unlink()
        with zipfile.ZipFile(make_frame(writer.digest.hexdigest())) as frame:
            for part in frame.infolist():
                if not part.is_dir():
                    archive.writestr(_entry(part.filename), frame.read(part))
    target.chmod(0o755)


def places_of(wheel: Path) -> dict[str, str]:
    """Returns the paths in a site directory of the files of a wheel, by their names in the wheel.

    Left out is what belongs to other folders of an installation, such as commands: they contain the path of an
    interpreter and are never run. Everything else stays, as pip installs it, because an index has its digest.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [member.filename for member in archive.infolist() if not member.is_dir()]
    places = {}
    for name in names:
        top, *rest = name.split("/")
        if top.endswith(".data"):
            if rest[0] in ("purelib", "platlib"):
                places[name] = "/".join(rest[1:])
        else:
            places[name] = name
    return places


class _Writer:
    """Adds wheels to a zip file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.digest = hashlib.sha256()

    def add(self, wheel: Path, places: dict[str, str]) -> None:
        """Adds files of a wheel at their places. Its RECORD then names what the site directory has."""
        with zipfile.ZipFile(wheel) as source, wheel.open("rb") as file:
            installed = places_of(wheel)
            for name, place in places.items():
                member = source.getinfo(name)
                if _RECORD.fullmatch(name):
                    content = _installed_rows(source.read(member).decode(), installed)
                    self._archive.writestr(_entry(place), content)
                    self.digest.update(content)
                    continue
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    sys.exit(f"{wheel.name} has {name} in a compression that PEX files do not have")
                file.seek(member.header_offset + 26)  # the lengths of the name and of the fields that follow it
                file.seek(sum(struct.unpack("<HH", file.read(4))), io.SEEK_CUR)
                self._copy(file, member, place)

    def _copy(self, file: io.BufferedReader, member: zipfile.ZipInfo, place: str) -> None:
        """Copies a file as it is compressed. `zipfile` has no function for this."""
        entry = _entry(place, executable=bool((member.external_attr >> 16) & 0o111))
        entry.compress_type, entry.compress_size = member.compress_type, member.compress_size
        entry.file_size, entry.CRC = member.file_size, member.CRC
        entry.header_offset = self._archive.start_dir
        target = self._archive.fp
        assert target is not None
        target.seek(entry.header_offset)
        header = entry.FileHeader()
        target.write(header)
        self.digest.update(header)
        rest = member.compress_size
        while rest and (block := file.read(min(rest, _BLOCK))):
            target.write(block)
            self.digest.update(block)
            rest -= len(block)
        self._archive.start_dir = target.tell()
        self._archive.filelist.append(entry)
        self._archive.NameToInfo[place] = entry


def _entry(name: str, *, executable: bool = False) -> zipfile.ZipInfo:
    """The entry of a file that is not compressed."""
    entry = zipfile.ZipInfo(name, _DATE)
    entry.create_system = 3  # Unix: the next line is a mode
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    return entry


def _installed_rows(record: str, places: dict[str, str]) -> bytes:
    """Returns the rows of a RECORD whose files have a place in the site directory."""
    rows = [row for row in csv.reader(io.StringIO(record)) if row and row[0] in places]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted([places[row[0]], *row[1:]] for row in rows))
    return text.getvalue().encode()
