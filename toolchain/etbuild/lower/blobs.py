"""The blobs of named data: who asks for them, and which file each goes to.

`named_data` finds them in lowered methods. Writing a program needs only this module, which imports nothing that lowers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.extension.flat_tensor.serialize.flat_tensor_schema import FlatTensor
from executorch.extension.flat_tensor.serialize.serialize import (
    FlatTensorConfig,
    FlatTensorHeader,
    FlatTensorSerializer,
)

from etbuild import releases
from etbuild.errors import BuildError, Problem
from etbuild.files.program_file import named_data_content
from etbuild.lower.shards import tag_of_shard

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

_MOST_ALIGNMENT = 1 << 21  # bytes: the largest alignment in a manifest

Claims = dict[str, set[str | None]]
"""For each blob by key, the shards whose weights it holds; None stands for weights without a shard."""


class Blob:
    """The content of a constant, or the compiled output or stored data of a backend.

    Args:
        content: The content: in memory, or in a file.
        sha256: Its digest in hex, if it is known.
    """

    def __init__(self, content: CordBuffer, sha256: str | None = None) -> None:
        self.content = content
        self._sha256 = sha256

    @cached_property
    def sha256(self) -> str:
        """The digest of the content, in hex."""
        return releases.sha256_of(self.content).hex() if self._sha256 is None else self._sha256


@dataclass(frozen=True)
class BlobRequest:
    """A blob that one delegate stores under a key.

    Attributes:
        method: The name of the delegate's method.
        backend: ExecuTorch's name of the delegate's backend.
        data: The blob.
        entry: ExecuTorch's entry for it: its alignment in bytes, and the layout of its tensor.
    """

    method: str
    backend: str
    data: Blob
    entry: DataEntry

    @property
    def alignment(self) -> int:
        """The alignment in bytes; 1 if the backend gives none."""
        return 1 if self.entry.alignment is None else self.entry.alignment

    def __str__(self) -> str:
        return f"{self.backend} of `{self.method}`"


def arrange(requests: Iterable[tuple[str, BlobRequest]], claims: Claims) -> NamedDataStore:
    """Decides which file each blob of the delegates goes to, independently of the order of the methods.

    A blob that a tagged and an untagged weight share goes to the tag. A blob that several shards of a tag share goes to
    the first of them. A blob that several delegates store gets an alignment that suits all of them.

    Args:
        requests: The blobs that the delegates of all methods store, by key, in the order of the methods' names.
        claims: For each key of all methods, the shards that claim it.

    Returns:
        ExecuTorch's store of all blobs.

    Raises:
        BuildError: Two tags claim a blob, delegates store different blobs under one key, or the alignments in one file
            have no common multiple up to 2 MiB.
    """
    asked: dict[str, list[BlobRequest]] = {}
    for key, request in requests:
        asked.setdefault(key, []).append(request)
    _check_requests(asked)
    arranged = NamedDataStore()
    for key, of_key in sorted(asked.items()):
        data, layout = of_key[-1].data.content, of_key[-1].entry.tensor_layout
        alignment = math.lcm(*(request.alignment for request in of_key))
        arranged.add_named_data(key, data, alignment, _only_shard(claims[key], len(data)), layout)
    for entries in (arranged.pte_data, *arranged.external_data.values()):
        _align_together(entries.values())
        _check_alignments({key: asked[key] for key in entries})
    return arranged


def _check_requests(asked: dict[str, list[BlobRequest]]) -> None:
    """Fails if delegates store different blobs under one key, or if an alignment is not a positive integer."""
    problems = []
    for key, requests in sorted(asked.items()):
        first, *others = requests
        other = next((each for each in others if each.data.sha256 != first.data.sha256), None)
        if other is not None:
            message = f"{first} and {other} store different data under the key `{key}` of named data"
            hint = "a key is unique in a program: the backend must derive it from the data or from a weight's name"
            problems.append(Problem(message, ("methods", other.method, "partitioners"), hint))
        wrong = next((each for each in requests if type(each.alignment) is not int or each.alignment < 1), None)
        if wrong is not None:
            message = f"{wrong} asks for named data `{key}` at an alignment of {wrong.alignment!r} bytes"
            problems.append(Problem(message, ("methods", wrong.method, "partitioners"), "the smallest alignment is 1"))
    BuildError.raise_if(problems)


def _align_together(entries: Iterable[DataEntry]) -> None:
    """Gives all keys of a blob the same alignment: ExecuTorch uses only the alignment of the first key."""
    by_blob: dict[int, list[DataEntry]] = {}
    for entry in entries:
        by_blob.setdefault(entry.buffer_index, []).append(entry)
    for same in by_blob.values():
        alignment = math.lcm(*(entry.alignment for entry in same))
        for entry in same:
            entry.alignment = alignment


def _check_alignments(asked: dict[str, list[BlobRequest]]) -> None:
    """Fails if the common multiple of the alignments in one file is too large: each blob may add that much padding."""
    askers = {each.alignment: each for requests in asked.values() for each in requests}
    if math.lcm(*askers) > _MOST_ALIGNMENT:
        listed = ", ".join(f"{alignment} by {asker}" for alignment, asker in sorted(askers.items()))
        message = f"the named data of one file needs alignments without a common multiple up to 2 MiB: {listed}"
        raise BuildError.at(("methods",), message, "use powers of two")


def _only_shard(claims: set[str | None], size: int) -> str | None:
    shards = sorted(shard for shard in claims if shard is not None)
    tags = sorted({tag_of_shard(shard) for shard in shards})
    if len(tags) > 1:
        raise BuildError.at(
            ("named_data", tags[-1]),
            f"the tags {' and '.join(f'`{tag}`' for tag in tags)} have weights with the same content ({size} "
            "bytes; a bias of zeros?), and the runtime rejects a blob that is in two files",
            "exclude that weight from the patterns of one of them",
        )
    return shards[0] if shards else None


def blob_bytes(blob: CordBuffer) -> bytes:
    """The bytes of a blob, which may be in a file."""
    return blob.to_bytes() if releases.is_file_backed(blob) else bytes(blob)


def program_alignment(store: NamedDataStore, alignment: int) -> int:
    """The alignment that a program's segments need so that each blob of named data is aligned as its backend requires.

    ExecuTorch aligns each blob relative to the start of the segments, so the start must be aligned too.

    Args:
        store: The arranged blobs.
        alignment: The smallest alignment of the segments, in bytes.

    Returns:
        An alignment in bytes, a multiple of `alignment`.
    """
    return math.lcm(alignment, *(entry.alignment for entry in store.pte_data.values()))


def files_by_shard(store: NamedDataStore, written: dict[str, Cord], alignment: int) -> dict[str, Cord]:
    """The content of the named-data file of each shard. Its blobs are in the order of their keys, not of the graph.

    Args:
        store: The arranged blobs.
        written: ExecuTorch's content of the file of each shard.
        alignment: The smallest alignment of a blob in its file, in bytes.
    """
    alignments = {key: entry.alignment for entries in store.external_data.values() for key, entry in entries.items()}
    files = {}
    for shard, file in sorted(written.items()):
        content, blobs = _pieces(file)
        entries = {
            named.key: DataEntry(named.segment_index, alignments.get(named.key, 1), named.tensor_layout)
            for named in sorted(content.named_data, key=lambda named: named.key)
        }
        _align_together(entries.values())
        aligned = math.lcm(alignment, *(entry.alignment for entry in entries.values()))  # as in `program_alignment`
        serializer = FlatTensorSerializer(FlatTensorConfig(segment_alignment=aligned))
        files[shard] = serializer.serialize(DataPayload(blobs, entries))
    return files


def _pieces(file: Cord) -> tuple[FlatTensor, list[CordBuffer]]:
    """The header of a named-data file and its blobs. Blobs that are in files are not read."""
    pieces, end = {}, 0
    for piece in file._buffers:
        if len(piece):
            pieces[end] = piece
        end += len(piece)
    head = blob_bytes(pieces[0])
    content, start = named_data_content(head), FlatTensorHeader.from_bytes(head[8:]).segment_base_offset
    return content, [pieces[start + segment.offset] if segment.size else b"" for segment in content.segments]
