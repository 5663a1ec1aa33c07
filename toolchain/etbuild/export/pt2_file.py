"""Reads a `.pt2` of torch.export.save as data. `torch.export.load` runs code of the file: see `pt2_strings`, and it
unpickles example inputs and whatever the file marks as pickled.

Of the records of the archive only these are read: the graph, the tables of weights and constants, and their bytes.
Example inputs, guards and files beside are left alone: no program needs them.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass, deserialize_scalar_type
from torch.export import ExportedProgram
from torch.export.pt2_archive import constants as names

from etbuild.exception_text import summary
from etbuild.export.pt2_strings import Refused, check

_MAX_EXPANDED = 2**30  # bytes of a tensor of which the file holds less, since its elements share memory
_OF_ZIP = (zipfile.BadZipFile, struct.error, EOFError, NotImplementedError, LookupError, OSError, ValueError)


class NotExported(Refused):
    """The file is of another kind, as those of torch.save and torch.jit.save are."""


def load(file: Path) -> ExportedProgram:
    """The program in a file.

    Raises:
        NotExported: The file is of another kind.
        Refused: It is damaged, or holds what could only be read by running it.
        Exception: PyTorch cannot read the graph: it has errors of many kinds.
    """
    try:
        if not _starts_as_archive(file):
            raise NotExported
        with zipfile.ZipFile(file) as archive:
            records = _Records(archive, file.stat().st_size)
            program = _table(schema.ExportedProgram, records, records.only_model())
            state = _tensors(records, names.WEIGHTS_CONFIG_FILENAME_FORMAT, names.WEIGHTS_DIR)
            constants = _tensors(records, names.CONSTANTS_CONFIG_FILENAME_FORMAT, names.CONSTANTS_DIR)
    except RecursionError:
        raise Refused("it is nested too deeply") from None
    except _OF_ZIP as error:
        raise Refused(f"it is damaged: {summary(error)}") from error
    return ExportedProgramDeserializer().deserialize(program, state, constants, None)


def _starts_as_archive(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"PK"


class _Records:
    """The records of an archive, by their names in it. None is compressed: what is read is no larger than the file."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        """Args:
            archive: The archive.
            size: Of the whole file, in bytes.

        Raises:
            Refused: It is no archive as PyTorch writes it.
        """
        self._archive = archive
        entries = archive.infolist()
        self._sizes = {entry.filename: entry.file_size for entry in entries}
        if not entries:
            raise Refused("it is an empty archive")
        self._root = entries[0].filename.partition("/")[0]
        if len(self._sizes) < len(entries):
            raise Refused("two records of it have one name")
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise Refused("its records are compressed or encrypted, which those of PyTorch are not")
        if sum(self._sizes.values()) > size:
            raise Refused("its records overlap")

    def __contains__(self, name: str) -> bool:
        return f"{self._root}/{name}" in self._sizes

    def only_model(self) -> str:
        """The name of the record that is the graph."""
        if names.ARCHIVE_FORMAT_PATH not in self or self.read(names.ARCHIVE_FORMAT_PATH) != b"pt2":
            if "serialized_exported_program.json" in self._sizes:
                raise Refused("a release before PyTorch 2.8 wrote it: save the program anew")
            raise NotExported
        prefix = f"{self._root}/{names.MODELS_DIR}"
        found = [name.removeprefix(f"{self._root}/") for name in self._sizes if name.startswith(prefix)]
        wanted = names.MODELS_FILENAME_FORMAT.format("model")
        if found != [wanted]:
            raise Refused(f"it holds {len(found)} programs" if found else "it holds no exported program")
        return str(wanted)

    def read(self, name: str) -> bytearray:
        """The content of a record.

        Raises:
            Refused: There is none of this name.
        """
        content = bytearray(self._size(name))
        with memoryview(content) as view:
            self._read_into(view, name)
        return content

    def read_tensor(self, name: str) -> torch.Tensor:
        """The content of a record, in memory as PyTorch allocates it. How memory is aligned decides which kernels run,
        and so the last bits of what they compute: of a bytearray it differs from run to run.

        Raises:
            Refused: There is none of this name.
        """
        content = torch.empty(self._size(name), dtype=torch.uint8)
        self._read_into(memoryview(content.numpy()), name)
        return content

    def _size(self, name: str) -> int:
        if name not in self:
            raise Refused(f"it has no record `{ascii(name)[1:-1]}`")
        return self._sizes[f"{self._root}/{name}"]

    def _read_into(self, view: memoryview, name: str) -> None:
        start = 0
        with self._archive.open(f"{self._root}/{name}") as record:
            while read := record.read(2**24):  # in parts, since weights are large
                view[start : start + len(read)] = read
                start += len(read)
        if start < len(view):
            raise Refused(f"its record `{name}` ends too early")


def _table(form: Any, records: _Records, name: str) -> Any:
    """A record of JSON, as an object of PyTorch's schema."""
    try:
        content = json.loads(records.read(name))
    except ValueError as error:
        raise Refused(f"its record `{name}` is no JSON: {error}") from error
    if isinstance(content, dict):
        content["guards_code"] = []  # PyTorch would run them as Python code
    check(form, content)
    if form is schema.ExportedProgram and not content.get("verifiers"):
        raise Refused("it names no dialect")
    return _dict_to_dataclass(form, content)


def _tensors(records: _Records, table: str, directory: str) -> dict[str, torch.Tensor]:
    """Weights or constants by name; those of one record share its memory."""
    config = _table(schema.PayloadConfig, records, table.format("model")).config
    contents: dict[str, torch.Tensor] = {}
    found = {}
    for name, entry in config.items():
        record = f"{directory}{entry.path_name}"
        if entry.tensor_meta is None:
            raise Refused(f"its record `{record}` is an object that would be unpickled, which runs code of the file")
        if entry.use_pickle:
            found[name] = _unpickled(records, record)
            continue
        if record not in contents:
            contents[record] = records.read_tensor(record)
        tensor = _tensor(name, contents[record], entry.tensor_meta)
        found[name] = torch.nn.Parameter(tensor, requires_grad=False) if entry.is_param else tensor
    return found


def _unpickled(records: _Records, record: str) -> torch.Tensor:
    """A tensor of a class of its own, as of torchao, by PyTorch's unpickler that calls nothing but what it knows."""
    content = records.read(record)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _Records(archive, len(content))
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle and zip each have errors of their own
        raise Refused(f"its record `{record}` could only be read by running code of it: {summary(error)}") from error
    if not isinstance(tensor, torch.Tensor):
        raise Refused(f"its record `{record}` is no tensor")
    return tensor


def _tensor(name: str, content: torch.Tensor, meta: schema.TensorMeta) -> torch.Tensor:
    """A tensor in the bytes of a record, in the layout that the file gives it."""
    try:
        dtype = deserialize_scalar_type(meta.dtype)
        sizes = [size.as_int for size in meta.sizes]
        strides = [stride.as_int for stride in meta.strides]
        offset = meta.storage_offset.as_int
    except (AttributeError, LookupError, ValueError):
        raise Refused(f"the form of `{name}` is unknown") from None
    if meta.layout != schema.Layout.Strided or len(sizes) != len(strides) or min([0, offset, *sizes, *strides]) < 0:
        raise Refused(f"the form of `{name}` is unknown")
    wanted = math.prod(sizes) * dtype.itemsize
    if wanted and not len(content):
        raise Refused(f"`{name}` has no content: was the program exported under a FakeTensorMode?")
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if wanted else -1
    if (last + 1) * dtype.itemsize > len(content) or wanted > max(len(content), _MAX_EXPANDED):
        raise Refused(f"`{name}` is larger than its record")
    try:
        if not wanted:
            return torch.empty(sizes, dtype=dtype)
        bits = content[: len(content) // dtype.itemsize * dtype.itemsize]
        return bits.view(dtype).as_strided(sizes, strides, offset)
    except (RuntimeError, OverflowError, TypeError) as error:  # a size or stride of more than 63 bits
        raise Refused(f"the form of `{name}` is unknown") from error
