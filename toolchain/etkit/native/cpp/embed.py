"""Writes a program, and its named data, as arrays of C++."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import InputError
from etkit.native.cpp.wrapper import literal, namespace_of

if TYPE_CHECKING:
    from etbuild.results import Index

MAX_BYTES = 16 << 20
"""Bytes. For more, a compiler needs about a minute and 2 GB. Applications map larger files instead."""

_ALIGNMENT = 4096  # bytes of a page: no segment of a file needs a larger alignment
_WORDS = 12  # words in a line


def files(
    index: Index, directory: Path, stem: str, namespace: str | None = None, limit: int = MAX_BYTES
) -> dict[str, str]:
    """The contents of `NAME_data.h` and `NAME_data.cc`, by name.

    Args:
        index: The program's index.
        directory: The directory of its files.
        stem: The name of the files, without suffixes.
        namespace: The namespace of what they declare. Default: the program's name.
        limit: The largest size of all files in bytes.

    Raises:
        InputError: A file cannot be read, there is more than one with named data, or they are larger than the limit.
    """
    name, namespace = index["name"], namespace_of(index["name"], namespace)
    kinds = {kind: [each for each in index["artifacts"] if each["kind"] == kind] for kind in ("program", "named_data")}
    [program], named = kinds["program"], kinds["named_data"]
    if len(named) > 1:
        hint = "give all parameters one tag, or load the files from a directory"
        raise InputError.of(f"{name}: {len(named)} files of named data: ExecuTorch takes one from memory", hint)
    size = sum(each["size"] for each in (program, *named))
    if size > limit:
        hint = "load the files from a directory, or raise --max-bytes"
        raise InputError.of(f"{name}: its files have {size:,} bytes, and at most {limit:,} are embedded", hint)
    arrays = {"kProgram": program, **({"kNamedData": named[0]} if named else {})}
    contents = {array: _read(directory / each["file"], each["sha256"], limit) for array, each in arrays.items()}
    data = contents.get("kNamedData")
    source = [
        f"// The program {literal(name)}, as `etbuild cpp --embed` has written it.",
        f'#include "{stem}_data.h"',
        "",
        "#include <cstdint>",
        "",
        f"namespace {namespace} {{",
        "namespace {",
        "// Words, because a compiler reads them faster than bytes. ExecuTorch runs on little-endian machines only.",
        *(line for array, content in contents.items() for line in _array(array, content)),
        "} // namespace",
        "",
        "const etbuild::Embedded& embedded_files() {",
        "  static const etbuild::Embedded files = {",
        f"      kProgram, {len(contents['kProgram'])}u, {'kNamedData' if data else 'nullptr'}, {len(data or b'')}u}};",
        "  return files;",
        "}",
        "",
        f"}} // namespace {namespace}",
        "",
    ]
    declared = [
        f"// The files of the program {literal(name)}, as `etbuild cpp --embed` has written it.",
        "#pragma once",
        "",
        f'#include "{stem}.h"',
        "",
        f"namespace {namespace} {{",
        "",
        "const etbuild::Embedded& embedded_files();",
        "",
        f"}} // namespace {namespace}",
        "",
    ]
    return {f"{stem}_data.h": "\n".join(declared), f"{stem}_data.cc": "\n".join(source)}


def _read(path: Path, sha256: str, limit: int) -> bytes:
    from etbuild.files import regular_files

    try:
        content = regular_files.read(path, limit)
    except OSError as error:
        raise InputError.of(f"{path}: cannot read the file: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError.of(f"{path}: not the file that its index names", "build the program again")
    return content


def _array(name: str, content: bytes) -> Iterator[str]:
    words = [word for (word,) in struct.iter_unpack("<Q", content + bytes(-len(content) % 8))]
    yield f"alignas({_ALIGNMENT}) const uint64_t {name}[] = {{"
    for start in range(0, len(words), _WORDS):
        yield "".join(f"{word:#x}u," for word in words[start : start + _WORDS])
    yield "};"
