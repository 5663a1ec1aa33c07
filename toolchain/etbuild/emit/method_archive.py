"""Saves and reads an emitted method as a directory, for the cache and for build rules.

method.json     why the method cannot be lowered by itself; or else the weights that it needs
emitted.json    the method: its plan, its facts and the digests of its blobs
blobs/SHA256    constants that are no weights of the module, and what backends compiled; equal content is stored once

Who may write these files may run code anyway: digests find damage, and nothing else is checked.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import schema
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.tensor_layout import TensorLayout

from etbuild import releases
from etbuild.emit.emit_methods import Emitted, MethodFacts, TaggedWeight
from etbuild.emit.mutable_buffers import Buffers, BufferUser, Planned
from etbuild.errors import InputError
from etbuild.files import artifacts, json_file
from etbuild.files.digests import canonical_json, file_digest
from etbuild.foreign_errors import wrap_library_errors
from etbuild.lower import named_data
from etbuild.lower.named_data import Blob, BlobRequest
from etbuild.lower.weight_sharing import WeightReader

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

_SCHEMA = "executorch-lowered-method/v5"
BLOBS = "blobs"
_METHOD, _EMITTED = "method.json", "emitted.json"


@dataclass(frozen=True)
class SavedMethod:
    """What `read` returns. `load` reads the method itself.

    Attributes:
        directory: The directory that holds the method.
        name: The method's name.
        reason: Why it must be lowered with the others, for users; else None.
        emitted: The digest of the file with the method; empty if there is a `reason`.
        weights: The names of the parameters and buffers whose content `load` needs.
    """

    directory: Path
    name: str
    reason: str | None
    emitted: str
    weights: list[str]


def write(directory: Path, name: str, emitted: Emitted, content: dict[str, torch.Tensor]) -> None:
    """Saves an emitted method.

    Args:
        directory: An existing directory that contains nothing except blobs.
        name: The method's name.
        emitted: Only this method.
        content: The module's parameters and buffers by name, if lowering left their content as it was. It is not saved.

    Raises:
        BuildError: A file cannot be written.
    """
    (directory / BLOBS).mkdir(exist_ok=True)
    same = {digest: name for digest, (name, weight) in emitted.weights.items() if _same(weight, content.get(name))}
    needed = set[str]()

    def blob_facts(blob: Blob) -> list[str]:
        """Saves a blob unless the module has it. Returns its digest, and the weight's name if the module has it."""
        if blob.sha256 in same:
            needed.add(same[blob.sha256])
            return [blob.sha256, same[blob.sha256]]
        if not (directory / BLOBS / blob.sha256).exists():
            artifacts.write(directory, f"{BLOBS}/{blob.sha256}", "lowered", named_data.blob_bytes(blob.content))
        return [blob.sha256]

    data = json.dumps(_to_json(replace(emitted, weights={}), blob_facts), separators=(",", ":")).encode()
    digest = artifacts.write(directory, _EMITTED, "lowered", data).sha256
    _write_facts(directory, {"name": name, "why_not": None, "emitted": digest, "weights": sorted(needed)})


def _same(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two tensors view the same memory with the same dtype, shape and strides."""
    return other is not None and bool(
        tensor.data_ptr() == other.data_ptr()
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )


def write_reason(directory: Path, name: str, reason: str) -> None:
    """Saves why a method must be lowered together with the others.

    Args:
        directory: An existing empty directory.
        name: The method's name.
        reason: The reason, for users.

    Raises:
        BuildError: The file cannot be written.
    """
    _write_facts(directory, {"name": name, "why_not": reason, "emitted": "", "weights": []})


def _write_facts(directory: Path, facts: dict[str, object]) -> None:
    artifacts.write(directory, _METHOD, "lowered", canonical_json({"schema": _SCHEMA, **facts}))


def read(directory: Path, name: str) -> SavedMethod:
    """Reads what is known of a saved method without its content.

    Args:
        directory: The directory that `write` or `write_reason` filled.
        name: The name that the method must have.

    Raises:
        InputError: The directory holds no lowered method or that of another name, or method.json is damaged.
    """
    try:
        facts = json_file.read(directory / _METHOD, json_file.Format("the lowered method", "step#loweredMethod"))
    except InputError as error:
        raise InputError([replace(problem, path=("methods", name)) for problem in error.problems]) from None
    if facts["name"] != name:
        raise InputError.at(("methods", name), f"the lowered method is `{facts['name']}`, not this one")
    return SavedMethod(directory, name, facts["why_not"], facts["emitted"], facts["weights"])


class Content:
    """The content that several methods need. It keeps the bytes of each tensor once, and checks each file once.

    Args:
        tensors: The parameters and buffers by name.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._bytes: dict[str, bytes] = {}
        self._files: dict[Path, CordBuffer] = {}

    def of(self, name: str, digest: str) -> bytes:
        """The bytes of a tensor.

        Raises:
            ValueError: The tensor has another digest.
        """
        if digest not in self._bytes:
            content = named_data.tensor_content(self._tensors[name])
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError(f"the weight `{name}` is not the one that the method was lowered with")
            self._bytes[digest] = content
        return self._bytes[digest]

    def in_file(self, file: Path) -> CordBuffer:
        """A blob in a file that is named after its digest.

        Raises:
            ValueError: The file is damaged.
        """
        if file not in self._files:
            if file_digest(file) != file.name:
                raise ValueError(f"{file.name} is damaged")
            self._files[file] = releases.file_backed(file, bytes.fromhex(file.name))
        return self._files[file]


def load(method: SavedMethod, content: Content) -> Emitted:
    """Reads a method and its blobs.

    Args:
        method: What `read` returned. `reason` is None.
        content: The content of the parameters and buffers in the method's `weights`.

    Raises:
        InputError: A file is damaged.
    """

    def read_blob(digest: str, weight: str = "") -> Blob:
        return Blob(content.of(weight, digest) if weight else content.in_file(blobs / digest), digest)

    blobs = method.directory / BLOBS
    with wrap_library_errors(InputError, ("methods", method.name), "cannot load the lowered method"):
        data = (method.directory / _EMITTED).read_bytes()
        if hashlib.sha256(data).hexdigest() != method.emitted:
            raise ValueError(f"{_EMITTED} is damaged")
        emitted: Emitted = _from_json(json.loads(data), read_blob)
        for blob in emitted.delegates:  # they may become a part of the program's flatbuffer
            blob.content = named_data.blob_bytes(blob.content)
        return emitted


# The types of which a method consists: ExecuTorch's, and ours.
_TYPES: dict[str, type] = {
    name: kind
    for name, kind in vars(schema).items()
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum))
}
_OURS = (Emitted, MethodFacts, TaggedWeight, WeightReader, Buffers, BufferUser, Planned, BlobRequest)
_TYPES.update({kind.__name__: kind for kind in (TensorLayout, DataEntry, tuple, set, *_OURS)})


def _to_json(value: Any, blob_facts: Callable[[Blob], list[str]]) -> Any:
    """Converts a part of a method to JSON data: an object names its type, and has an element for each field."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_to_json(each, blob_facts) for each in value]
    if isinstance(value, dict):
        return {"": {key: _to_json(each, blob_facts) for key, each in value.items()}}
    if isinstance(value, (tuple, set)):
        ordered = sorted(value, key=str) if isinstance(value, set) else value
        return {"set" if isinstance(value, set) else "tuple": [_to_json(each, blob_facts) for each in ordered]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, Blob):
        return {"Blob": blob_facts(value)}
    name = type(value).__name__
    if _TYPES.get(name) is not type(value):
        raise TypeError(f"a lowered method with {type(value)}")
    if isinstance(value, enum.Enum):
        return {name: value.value}
    return {name: [_to_json(getattr(value, field.name), blob_facts) for field in dataclasses.fields(_TYPES[name])]}


def _from_json(data: Any, read_blob: Callable[..., Blob]) -> Any:
    """Reverses `_to_json`."""
    if isinstance(data, list):
        return [_from_json(each, read_blob) for each in data]
    if not isinstance(data, dict):
        return data
    ((name, value),) = data.items()
    if name == "":
        return {key: _from_json(each, read_blob) for key, each in value.items()}
    if name == "bytes":
        return bytes.fromhex(value)
    if name == "Blob":
        return read_blob(*value)
    kind = _TYPES[name]
    if kind in (tuple, set):
        return kind(_from_json(each, read_blob) for each in value)
    return kind(value) if issubclass(kind, enum.Enum) else kind(*(_from_json(each, read_blob) for each in value))
