"""Deltas: what a device with some programs must fetch to get others, as a directory that can be applied on the device.

delta.json             what becomes of each file
blobs/sha256/1234...   the files and patches that the device does not have
"""

from __future__ import annotations

import bz2
import os
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError, EtbuildError, InputError
from etbuild.extras import install_hint
from etbuild.files import json_file, writing
from etbuild.files.digests import canonical_json
from etbuild.foreign_errors import wrap_library_errors
from etbuild.publishing import artifacts
from etkit.registry.oci import assembly, package
from etkit.registry.oci.descriptors import Descriptor
from etkit.registry.oci.package import Package, Program
from etkit.registry.oci.places import Place

_NAME = "delta.json"
_BLOBS = "blobs/sha256"
_WANTED = json_file.Format("a delta", "delta", "make it with `etbuild delta`")
LARGEST_PATCHED = 64 << 20
"""The largest program that gets a patch, in bytes. Making a patch needs memory of seventeen times this size."""

Delta = dict[str, Any]
"""JSON data that fits `schemas/delta.schema.json`."""

Contents = dict[str, bytes | Descriptor]
"""The contents that a device lacks, by sha256: patches, and files of the new programs."""


def make(before: Place, after: Place, patches: bool, partial: bool = False) -> tuple[Delta, Contents]:
    """Compares two places.

    Args:
        before: What the device has.
        after: What it should have.
        patches: Whether to make patches of programs (`.pte`) if a patch has less than half of the program's size.
        partial: Whether the device keeps programs that `after` does not have.

    Returns:
        The delta, and the contents that the device does not have.

    Raises:
        EtbuildError: A file cannot be read.
    """
    old_files = {name: blob for program in before.content.programs for name, blob in program.files.items()}
    known = {blob.sha256: name for name, blob in old_files.items() if name not in before.missing}
    contents: Contents = {}
    fetched: dict[str, int] = {}
    whole: dict[str, int] = {}

    def entry(name: str, blob: Descriptor) -> dict[str, Any]:
        facts, old = _facts(blob), old_files.get(name)
        whole[blob.sha256] = blob.size
        if blob.sha256 in known:
            return {**facts, "how": "keep", "base": {"file": known[blob.sha256], **facts}}
        patch = _patch(before, after, old, blob) if patches and old and name.endswith(".pte") else None
        if old and patch:
            made = Descriptor.of("patch", patch)
            contents[made.sha256] = patch
            fetched[blob.sha256] = made.size
            return {**facts, "how": "patch", "base": {"file": name, **_facts(old)}, "patch": _facts(made)}
        contents[blob.sha256] = after.content.documents.get(blob.sha256, blob)
        fetched[blob.sha256] = blob.size
        return {**facts, "how": "fetch"}

    programs = {
        program.name: {name: entry(name, blob) for name, blob in program.files.items()}
        for program in after.content.programs
    }
    removed = {
        program.name: {name: _facts(blob) for name, blob in program.files.items()}
        for program in before.content.programs
        if program.name not in programs
    }
    delta = {"schema": "executorch-delta/v1", "programs": programs}
    if removed and not partial:
        delta["removed"] = removed
    changes = {each.name: _change(before.content, after.content, each) for each in after.content.programs}
    if found := {name: change for name, change in changes.items() if change is not None}:
        delta["changes"] = found
    return {**delta, "bytes": sum(fetched.values()), "whole_bytes": sum(whole.values())}, contents


def _change(before: Package, after: Package, program: Program) -> dict[str, Any] | None:
    """The differences of a program that both places have; None if there are none, or if the device does not have it."""
    known = next((each for each in before.programs if each.name == program.name), None)
    if known is None or known.index.sha256 == program.index.sha256:
        return None
    old, new = before.index(known), after.index(program)
    tensors = {(file, name): sha256 for file, held in new["tensors"].items() for name, sha256 in held.items()}
    same = sum(old["tensors"].get(file, {}).get(name) == sha256 for (file, name), sha256 in tensors.items())
    return {
        "program": old["template"] != new["template"],
        "weights": {"changed": len(tensors) - same, "of": len(tensors)},
    }


def _facts(blob: Descriptor) -> dict[str, Any]:
    return {"size": blob.size, "sha256": blob.sha256}


def _blob(facts: dict[str, Any]) -> Descriptor:
    return Descriptor("file", facts["sha256"], facts["size"])


def has_library() -> bool:
    """Whether the library that makes patches is installed."""
    from importlib.util import find_spec

    return find_spec("bsdiff4") is not None


def _patch(before: Place, after: Place, old: Descriptor, new: Descriptor) -> bytes | None:
    """A patch for a file; None if it would save too little."""
    import bsdiff4

    if max(old.size, new.size) > LARGEST_PATCHED:
        return None
    patch: bytes = bsdiff4.diff(before.load(old, LARGEST_PATCHED), after.load(new, LARGEST_PATCHED))
    return patch if len(patch) < new.size / 2 else None


def write(delta: Delta, contents: Contents, after: Place, directory: Path) -> None:
    """Writes a delta as a directory that can be applied elsewhere. It replaces an earlier delta.

    Raises:
        InputError: The directory exists, and is neither empty nor a delta.
        BuildError: A file cannot be written.
    """
    if not (assembly.is_free(directory) or _is_ours(directory)):
        raise InputError.of(
            f"{directory}: exists, and is not a delta, or holds other files too", "name a new directory"
        )
    with artifacts.whole_directory(directory) as content:
        blobs = content / _BLOBS
        blobs.mkdir(parents=True)
        for sha256, source in contents.items():
            if isinstance(source, bytes):
                writing.write(blobs, sha256, "file", source)
            else:
                after.save(source, blobs / sha256)
        writing.write(content, _NAME, "file", canonical_json(delta))


def _is_ours(directory: Path) -> bool:
    """Whether a directory holds a delta, and no other file."""
    try:
        delta: Delta = json_file.read(directory / _NAME, _WANTED)
    except EtbuildError:
        return False
    entries = [entry for files in delta["programs"].values() for entry in files.values()]
    digests = {each["sha256"] for entry in entries for each in (entry, entry.get("patch", entry))}
    return assembly.holds_only(directory, {_NAME, *(f"{_BLOBS}/{sha256}" for sha256 in digests)})


def apply(source: Path, directory: Path) -> Delta:
    """Applies a delta to a directory of programs. Nothing changes in the directory until every file has its digest.

    Args:
        source: The directory of the delta.
        directory: The directory of the programs.

    Returns:
        The delta.

    Raises:
        InputError: The delta is damaged, or the directory does not hold the programs that it is for.
        BuildError: A file has other content than the delta says, or cannot be written.
    """
    delta: Delta = json_file.read(source / _NAME, _WANTED)
    programs = {name: _files(name, entries, source) for name, entries in delta["programs"].items()}
    with artifacts.staging(directory) as staged:
        store = staged / "blobs"
        store.mkdir()
        for name, files in programs.items():
            for file, blob in files.items():
                if not (store / blob.sha256).exists():
                    _bring(source, directory, store, file, delta["programs"][name][file])
            package.check_files(store / files[f"{name}.index.json"].sha256, name, files, str(source))
        removed = _removed(delta, source, directory, staged / "removed")
        assembly.publish(programs, store, staged, directory, removed)
    return delta


def _files(name: str, entries: dict[str, Any], source: Path) -> dict[str, Descriptor]:
    """The files of a program after the update. The index comes last."""
    files = {file: _blob(entry) for file, entry in entries.items()}
    index = files.pop(f"{name}.index.json", None)
    if index is None:
        raise InputError.of(f"{source}: `{name[:100]}` has no index", _WANTED.hint)
    return {**files, f"{name}.index.json": index}


def _removed(delta: Delta, source: Path, directory: Path, checked: Path) -> list[str]:
    """The files of removed programs. Files that exist must be those that the delta is for."""
    names: list[str] = []
    checked.mkdir()
    for name, entries in delta.get("removed", {}).items():
        if name in delta["programs"]:
            raise InputError.of(f"{source}: `{name[:100]}` is removed and kept", _WANTED.hint)
        for file, entry in entries.items():
            package.check_name(file, name, str(source))
            if os.path.lexists(directory / file):
                _take_over(directory, {"file": file, **entry}, checked).unlink()  # an equal file is checked, too
                names.append(file)
    return names


def _bring(source: Path, directory: Path, store: Path, name: str, entry: dict[str, Any]) -> None:
    """Puts the content of a file into the store: from the device, from the delta, or by a patch."""
    blob = _blob(entry)
    if entry["how"] == "fetch":
        _copy(source, blob, store)
    elif entry["how"] == "keep":
        _take_over(directory, {**entry, "file": entry["base"]["file"]}, store)
    else:
        patch = _blob(entry["patch"])
        if max(entry["base"]["size"], patch.size, blob.size) > LARGEST_PATCHED:
            raise InputError.of(f"{source}: `{name}` is too large for a patch", _WANTED.hint)
        old = _take_over(directory, entry["base"], store).read_bytes()
        content = patched(old, _copy(source, patch, store).read_bytes(), blob, name)
        assembly.write(store / blob.sha256, content)


def _take_over(directory: Path, base: dict[str, Any], store: Path) -> Path:
    """Puts a file of the device, which the delta must be for, into the store. Returns its path there."""
    blob = _blob(base)
    if not assembly.take_over(directory, base["file"], blob, store):
        message = f"{directory}: `{base['file'][:100]}` is not the file that the delta is for"
        raise InputError.of(message, "fetch the whole programs, for instance with `etbuild pull`")
    return store / blob.sha256


def patched(old: bytes, patch: bytes, blob: Descriptor, name: str) -> bytes:
    """Applies a patch. Returns the new content.

    Args:
        old: The content that the patch is for.
        patch: The patch. It may come from anybody.
        blob: What the result must be.
        name: The name of the result, for errors.

    Raises:
        InputError: The extra is not installed.
        BuildError: The patch is damaged, or it makes something else.
    """
    try:
        import bsdiff4
    except ImportError:
        message = "a delta with patches needs the package `bsdiff4`"
        raise InputError.of(message, install_hint("delta")) from None
    _check_patch(patch, blob.size, name)
    with wrap_library_errors(BuildError, None, f"{name}: the patch is damaged"):
        new: bytes = bsdiff4.patch(old, patch)
    if not blob.describes(new):
        raise BuildError.of(f"{name}: the patch makes other content than the delta says")
    return new


def _check_patch(data: bytes, size: int, name: str) -> None:
    """Checks the sizes in a patch before the library uses them. It unpacks each part as a whole.

    A patch is a magic number, three sizes of 8 bytes, and three parts that bz2 has packed: instructions of 24 bytes,
    differences, and new bytes. https://www.daemonology.net/bsdiff/ describes it.
    """
    sizes = [int.from_bytes(data[start : start + 8], "little") for start in (8, 16, 24)]
    begins = [32, 32 + sizes[0], 32 + sizes[0] + sizes[1], len(data)]
    fits = len(data) >= 32 and sizes[2] == size and begins == sorted(begins)
    limits = (24 * (size // 4 + 100), size, size)
    for begin, end, limit in zip(begins, begins[1:], limits, strict=False):
        unpack = bz2.BZ2Decompressor()
        try:
            fits = fits and len(unpack.decompress(data[begin:end], max_length=limit + 1)) <= limit
            fits = fits and unpack.eof and not unpack.unused_data  # the library would also unpack what follows
        except (OSError, ValueError, EOFError):
            fits = False
    if not fits:
        raise BuildError.of(f"{name}: the patch is damaged")


def _copy(source: Path, blob: Descriptor, store: Path) -> Path:
    """Copies a content of the delta into the store. Returns its path there."""
    assembly.copy(source / _BLOBS / blob.sha256, blob, store / blob.sha256, "make the delta again")
    return store / blob.sha256
