"""Writes a PEX file with the packages of a site directory, which it compresses on all processors.

The same files give the same bytes, with every Python that has the same zlib. Uses only the standard library.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

_CHUNK = 1 << 23  # bytes; each is compressed by itself, so that a large library keeps no processor waiting
_LEVEL = 4  # of zlib: half the time of its default, and 4 % more bytes
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can have


def write_pex(frame: Path, site: Path, names: Iterable[str], target: Path) -> None:
    """Writes a PEX file.

    Args:
        frame: A PEX file without the packages: the code that unpacks and starts one.
        site: The site directory.
        names: The files in it to pack, by their paths there.
        target: The file to write.
    """
    with zipfile.ZipFile(frame) as archive:
        start = frame.read_bytes()[: min(entry.header_offset for entry in archive.infolist())]  # `#!...`
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
    target.write_bytes(start)
    with zipfile.ZipFile(target, "a") as archive:
        for name, content in parts.items():
            archive.writestr(_entry(name, executable=False), content)
        for name, packed in _compressed(site, names):
            _append(archive, _entry(name, executable=os.access(site / name, os.X_OK)), packed)
    target.chmod(0o755)


def _entry(name: str, *, executable: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3  # Unix: the next line is a mode
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    return entry


class _Packed:
    """A file as a zip file has it: the compressed parts, and the size and the checksum of the content."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = self.checksum = 0

    def add(self, content: bytes, compressed: bytes) -> None:
        """Adds the next chunk of the file."""
        self.parts.append(compressed)
        self.size += len(content)
        self.checksum = zlib.crc32(content, self.checksum)


def _append(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, packed: _Packed) -> None:
    """Adds a file that is compressed already. `zipfile` has no function for this: it compresses on one processor."""
    entry.CRC, entry.file_size = packed.checksum, packed.size
    entry.compress_size = sum(map(len, packed.parts))
    entry.header_offset = archive.start_dir
    file = archive.fp
    assert file is not None
    file.seek(entry.header_offset)
    file.write(entry.FileHeader())
    file.writelines(packed.parts)
    archive.start_dir = file.tell()
    archive.filelist.append(entry)
    archive.NameToInfo[entry.filename] = entry


def _compressed(site: Path, names: Iterable[str]) -> Iterator[tuple[str, _Packed]]:
    """Gives each file, in order. In memory are a few chunks, and one file without its content."""
    waiting: deque[tuple[str, Future[tuple[bytes, bytes]], bool]] = deque()
    packed = _Packed()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # zlib works beside other threads

        def finished(room: int) -> Iterator[tuple[str, _Packed]]:
            nonlocal packed
            while len(waiting) > room:
                name, chunk, last = waiting.popleft()
                packed.add(*chunk.result())
                if last:
                    yield name, packed
                    packed = _Packed()

        for name in names:
            size = (site / name).stat().st_size
            for place in range(0, size or 1, _CHUNK):
                last = place + _CHUNK >= size
                waiting.append((name, pool.submit(_compress, site / name, place, last=last), last))
                yield from finished(room=16)
        yield from finished(room=0)


def _compress(path: Path, place: int, *, last: bool) -> tuple[bytes, bytes]:
    """Returns a chunk of a file, and the same compressed."""
    with path.open("rb") as file:
        file.seek(place)
        content = file.read(_CHUNK)
    work = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # After a full flush the next chunk begins as if it were the first, and all of them are one stream.
    return content, work.compress(content) + work.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)
