"""Reads a `.pt2` of torch.export.save without running code of the file.

`torch.export.load` can run code of the file: it evaluates strings (see `strings`), and unpickles example inputs and
everything that the file marks as pickled.

This module reads only the records of the graph, the tables of weights and constants, and their bytes. It ignores
example inputs, guards and additional files, because no program needs them.
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

from etbuild.errors import DocumentPath, InputError
from etbuild.exception_text import summary
from etbuild.files import json_file
from etplugins.pt2_files.strings import UnsafePt2, check

_MAX_EXPANDED = 2**30  # bytes: by so much, tensors with elements that share memory may exceed their records
_ZIP_ERRORS = (zipfile.BadZipFile, struct.error, EOFError, NotImplementedError, LookupError, OSError, ValueError)


class NotExported(UnsafePt2):
    """The file is not from torch.export.save, but for example from torch.save or torch.jit.save."""


def read(file: Path, name: str, path: DocumentPath) -> ExportedProgram:
    """Reads the program in a declared file.

    Args:
        file: The file.
        name: Its name in the manifest.
        path: The place that names it.

    Raises:
        InputError: The file is not from torch.export.save, or would run code.
        Exception: As for `load`.
    """
    try:
        return load(file)
    except NotExported as error:
        hint = f'write it with `torch.export.save(torch.export.export(module, inputs), "{name}")`'
        raise InputError.at(path, f"`{name}` is not a file of torch.export.save", hint) from error
    except UnsafePt2 as error:
        raise InputError.at(path, f"cannot read `{name}`: {error}") from error


def load(file: Path) -> ExportedProgram:
    """Reads the program in a file.

    Raises:
        NotExported: The file is not from torch.export.save.
        UnsafePt2: The file is damaged, or cannot be read without running code from it.
        Exception: PyTorch cannot read the graph. It raises errors of many types.
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
        raise UnsafePt2("it is nested too deeply") from None
    except _ZIP_ERRORS as error:
        raise UnsafePt2(f"it is damaged: {summary(error)}") from error
    return ExportedProgramDeserializer().deserialize(program, state, constants, None)


def _starts_as_archive(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"PK"


class _Records:
    """The records of an archive by name. No record is compressed, so none is larger than the file."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        """Reads the list of records of an archive. `size` is the size of the whole file in bytes."""
        self._archive = archive
        entries = archive.infolist()
        self._sizes = {entry.filename: entry.file_size for entry in entries}
        if not entries:
            raise UnsafePt2("it is an empty archive")
        self._root = entries[0].filename.partition("/")[0]
        if len(self._sizes) < len(entries):
            raise UnsafePt2("two of its records have the same name")
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise UnsafePt2("its records are compressed or encrypted, which PyTorch never does")
        if sum(self._sizes.values()) > size:
            raise UnsafePt2("its records overlap")

    def __contains__(self, name: str) -> bool:
        return f"{self._root}/{name}" in self._sizes

    def only_model(self) -> str:
        """The name of the record that holds the graph. Raises NotExported if the archive is not from
        torch.export.save."""
        if names.ARCHIVE_FORMAT_PATH not in self or self.read(names.ARCHIVE_FORMAT_PATH) != b"pt2":
            if "serialized_exported_program.json" in self._sizes:
                raise UnsafePt2("a release before PyTorch 2.8 wrote it: save the program again")
            raise NotExported
        prefix = f"{self._root}/{names.MODELS_DIR}"
        models = [name.removeprefix(f"{self._root}/") for name in self._sizes if name.startswith(prefix)]
        expected = names.MODELS_FILENAME_FORMAT.format("model")
        if models != [expected]:
            raise UnsafePt2(f"it holds {len(models)} programs" if models else "it holds no exported program")
        return str(expected)

    def read(self, name: str) -> bytearray:
        """The content of a record. Raises UnsafePt2 if the record is missing or ends too early."""
        content = bytearray(self._size(name))
        with memoryview(content) as view:
            self._read_into(view, name)
        return content

    def read_tensor(self, name: str) -> torch.Tensor:
        """The content of a record as a uint8 tensor, in memory that PyTorch allocates.

        The alignment of memory decides which kernels run, and so affects the last bits of their results. The alignment
        of a bytearray differs from run to run.
        """
        content = torch.empty(self._size(name), dtype=torch.uint8)
        self._read_into(memoryview(content.numpy()), name)
        return content

    def _size(self, name: str) -> int:
        if name not in self:
            raise UnsafePt2(f"it has no record `{ascii(name)[1:-1]}`")
        return self._sizes[f"{self._root}/{name}"]

    def _read_into(self, view: memoryview, name: str) -> None:
        start = 0
        with self._archive.open(f"{self._root}/{name}") as record:
            while read := record.read(2**24):  # in parts, since weights are large
                view[start : start + len(read)] = read
                start += len(read)
        if start < len(view):
            raise UnsafePt2(f"its record `{name}` ends too early")


def _table(form: Any, records: _Records, name: str) -> Any:
    """Reads a JSON record as an object of the class `form` of PyTorch's schema. Raises UnsafePt2 if the record has
    another form, or holds a string that PyTorch would run."""
    try:
        content = json.loads(records.read(name), object_pairs_hook=json_file.unique)
    except ValueError as error:
        raise UnsafePt2(f"its record `{name}` is not JSON: {error}") from error
    if isinstance(content, dict):
        content["guards_code"] = []  # PyTorch would run them as Python code
    check(form, content)
    if form is schema.ExportedProgram and not content.get("verifiers"):
        raise UnsafePt2("it names no dialect")
    return _dict_to_dataclass(form, content)


def _tensors(records: _Records, table: str, directory: str) -> dict[str, torch.Tensor]:
    """Reads weights or constants, by name. Tensors of one record share its memory.

    Args:
        records: The records of the archive.
        table: The pattern for the name of the record that lists the tensors.
        directory: The prefix of the names of their records.
    """
    config = _table(schema.PayloadConfig, records, table.format("model")).config
    contents: dict[str, torch.Tensor] = {}
    tensors, expanded = {}, 0
    for name, entry in config.items():
        record = f"{directory}{entry.path_name}"
        if entry.tensor_meta is None:
            raise UnsafePt2(f"its record `{record}` is a pickled object: reading it would run code from the file")
        if entry.use_pickle:
            tensors[name] = _unpickled(records, record)
            continue
        if record not in contents:
            contents[record] = records.read_tensor(record)
        tensor = _tensor(name, contents[record], entry.tensor_meta)
        expanded += max(0, tensor.nbytes - len(contents[record]))
        if expanded > _MAX_EXPANDED:
            raise UnsafePt2(f"its tensors up to `{name}` are larger than their records by {expanded:,} bytes")
        tensors[name] = torch.nn.Parameter(tensor, requires_grad=False) if entry.is_param else tensor
    return tensors


def _unpickled(records: _Records, record: str) -> torch.Tensor:
    """Reads a tensor subclass, such as torchao's, with PyTorch's restricted unpickler (`weights_only=True`)."""
    content = records.read(record)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _Records(archive, len(content))
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the errors of pickle and zip have no common base class
        raise UnsafePt2(
            f"its record `{record}` cannot be read without running code from the file: {summary(error)}"
        ) from error
    if not isinstance(tensor, torch.Tensor):
        raise UnsafePt2(f"its record `{record}` is not a tensor")
    return tensor


def _tensor(name: str, content: torch.Tensor, meta: schema.TensorMeta) -> torch.Tensor:
    """A view of a record's bytes (uint8) with the dtype and layout that the file gives for the tensor. Raises UnsafePt2
    if the layout is unknown, or does not fit into the record."""
    try:
        dtype = deserialize_scalar_type(meta.dtype)
        sizes = [size.as_int for size in meta.sizes]
        strides = [stride.as_int for stride in meta.strides]
        offset = meta.storage_offset.as_int
    except (AttributeError, LookupError, ValueError):
        raise UnsafePt2(f"the form of `{name}` is unknown") from None
    if meta.layout != schema.Layout.Strided or len(sizes) != len(strides) or min([0, offset, *sizes, *strides]) < 0:
        raise UnsafePt2(f"the form of `{name}` is unknown")
    nbytes = math.prod(sizes) * dtype.itemsize
    if nbytes and not len(content):
        raise UnsafePt2(f"`{name}` has no content: was the program exported under a FakeTensorMode?")
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if nbytes else -1
    if (last + 1) * dtype.itemsize > len(content) or nbytes > max(len(content), _MAX_EXPANDED):
        raise UnsafePt2(f"`{name}` is larger than its record")
    try:
        if not nbytes:
            return torch.empty(sizes, dtype=dtype)
        bits = content[: len(content) // dtype.itemsize * dtype.itemsize]
        return bits.view(dtype).as_strided(sizes, strides, offset)
    except (RuntimeError, OverflowError, TypeError) as error:  # a size or stride has more than 63 bits
        raise UnsafePt2(f"the form of `{name}` is unknown") from error
