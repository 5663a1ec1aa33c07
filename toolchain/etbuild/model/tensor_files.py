"""Opens files with tensors, and reads the tensors one by one, so that a checkpoint need not fit into memory twice."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild import plugins
from etbuild.errors import DocumentPath, InputError
from etbuild.files import safetensors_header
from etbuild.files.weights_suffixes import NUMPY_SUFFIX, suffixes_of_plugins
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.checkpoints import check_content
from etbuild.model.tensor_bytes import dtype_name

_MOST_KEYS = 5
_MAX_READ = 16 << 20  # after reading this many bytes, a file is mapped again
_MAX_REPEATED = 1 << 30  # bytes of a tensor with repeated elements: a small file may claim a tensor of any size
_MAX_DEPTH = 8  # of state dicts in state dicts: a mapping may contain itself
_HEADER_START = 8  # bytes before the `{` of a safetensors file
_TORCH_MAGIC = (b"PK\3\4", b"\x80")  # an archive, or a pickle
_CODE = re.compile(r"GLOBAL ([\w.]+)")  # in a message of torch.load
_MAX_COPIED = 1 << 16  # bytes: a view of a smaller tensor keeps too much of the file in memory


class PackedWeight(Protocol):
    """The content of a packed weight, such as integers with scales."""

    def dequantized(self) -> torch.Tensor:
        """The weight in float32."""


class TensorFile:
    """A file whose tensors are in memory. Subclasses read tensors later.

    Args:
        tensors: The tensors by name.

    Attributes:
        is_mapped: Whether the tensors are views of the mapped file, or copies of small parts of it.
        names: The names of the tensors.
    """

    is_mapped = False

    def __init__(self, tensors: dict[str, object]) -> None:
        self._tensors = tensors
        self.names = list(tensors)

    def check(self, names: Iterable[str]) -> None:
        """Checks that the entries with these names are tensors that can be read.

        Raises:
            InputError: An entry is something else.
        """

    def form(self, name: str) -> tuple[str, list[int]]:
        """PyTorch's name of a tensor's dtype, and its shape."""
        tensor: torch.Tensor = self._tensors[name]
        return dtype_name(tensor.dtype), list(tensor.shape)

    def take(self, name: str) -> torch.Tensor:
        """The tensor with a name."""
        tensor: torch.Tensor = self._tensors[name]
        return tensor

    def content(self, name: str) -> torch.Tensor | PackedWeight:
        """The tensor with a name, or a packed weight."""
        return self.take(name)

    def is_none(self, name: str) -> bool:
        """Whether the file has `None` under a name."""
        del name
        return False


class _Safetensors(TensorFile):
    """A safetensors file. Its large tensors are views of the mapped file, and small ones are copies.

    The part of a mapping that was read counts as memory of the process as long as a view of the mapping exists. So the
    file is mapped again from time to time. A caller can then convert a checkpoint that does not fit into memory twice.
    """

    is_mapped = True

    def __init__(self, name: str, file: Path, path: DocumentPath) -> None:
        from safetensors.torch import _TYPES

        self._name, self._file, self._path = name, file, path
        self._dtypes: dict[str, torch.dtype] = _TYPES
        self._open()
        with wrap_library_errors(InputError, path, f"cannot read `{name}`"):
            _check_header(file)
        super().__init__(dict.fromkeys(self._opened.keys()))

    def _open(self) -> None:
        from safetensors import safe_open

        action = f"cannot read `{self._name}`"
        with self._file.open("rb") as file:  # a file of torch.save begins as an archive or a pickle
            is_torch_file = file.read(4) in (b"PK\3\4", b"\x80\x02\x8a\x0a")
        hint = "it is a file of torch.save: give it a name that ends in .pt" if is_torch_file else None
        with wrap_library_errors(InputError, self._path, action, hint):
            self._opened: Any = safe_open(self._file, framework="pt")
        self._bytes_read = 0  # bytes since the last mapping

    def form(self, name: str) -> tuple[str, list[int]]:
        tensor_slice = self._opened.get_slice(name)
        code = tensor_slice.get_dtype()
        return str(self._dtypes.get(code, code)).removeprefix("torch."), tensor_slice.get_shape()

    def take(self, name: str) -> torch.Tensor:
        if self._bytes_read > _MAX_READ:
            self._open()
        tensor: torch.Tensor = self._opened.get_tensor(name)
        self._bytes_read += tensor.nbytes
        return tensor if tensor.nbytes > _MAX_COPIED else tensor.clone()


class _Loaded(TensorFile):
    """A file of torch.save that holds a mapping. If PyTorch can map the file, its tensors are views of it."""

    is_mapped = True

    def __init__(self, loaded: Any, name: str, path: DocumentPath, key: str) -> None:
        super().__init__(_named(loaded, name, path))
        self._file, self._path, self._key = name, path, f"{key}." if key else ""

    def is_none(self, name: str) -> bool:
        return self._tensors[name] is None

    def check(self, names: Iterable[str]) -> None:
        """Checks that the entries with these names are tensors with memory for every number."""
        hint = "list it under `ignore` of `weights`, or save only the state dict of the module"
        states = _states(self._tensors)
        for name in names:
            # Training code may save other tensors too, such as the state of a random number generator.
            hint_to_choose = (
                f"if it is the state dict, write `weights: {{file: {self._file}, key: {self._key}{name}}}`; else "
            )
            key_hint = hint_to_choose if name in states else ""
            _check_tensor(self._tensors[name], name, self._file, self._path, key_hint + hint)


def open_checkpoint(
    name: str, file: Path, path: DocumentPath, key: str | None = None, module: torch.nn.Module | None = None
) -> TensorFile:
    """Opens one file of a checkpoint.

    Args:
        name: The file's name in the manifest.
        file: The file.
        path: The document path that names it.
        key: The key of the state dict, if a file of torch.save holds several.
        module: The module, if its code is known. Some files of plug-ins need it.

    Raises:
        InputError: The file cannot be read, or it is unclear which part is its state dict.
    """
    check_content(name, file, path)
    of_plugin = next((suffix for suffix in suffixes_of_plugins() if name.endswith(suffix)), None)
    if key is not None and (of_plugin is not None or name.endswith(".safetensors")):
        message = f"`key` goes with files of torch.save, and `{name}` is another file"
        raise InputError.at((*path, "key"), message, "remove it")
    if of_plugin is not None:
        opened: TensorFile = plugins.load("tensor_file", of_plugin)(name, file, path, module)
        return opened
    if name.endswith(".safetensors"):
        return _Safetensors(name, file, path)
    loaded, key_of_state = _state_dict(_load(name, file, path), name, path, key)
    return _Loaded(loaded, name, path, key_of_state)


def read_tensors(name: str, file: Path, path: DocumentPath) -> dict[str, torch.Tensor]:
    """Reads the tensors of a safetensors, torch.save or NumPy file.

    Args:
        name: The file's name in the manifest.
        file: The file.
        path: The document path of that name.

    Returns:
        The tensors by name. If the file holds one tensor and no mapping, its name is "".

    Raises:
        InputError: The file cannot be read, or contains something other than tensors.
    """
    check_content(name, file, path)
    if name.endswith(".safetensors"):
        with wrap_library_errors(InputError, path, f"cannot read `{name}`"):
            from safetensors.torch import load_file

            tensors: dict[str, torch.Tensor] = load_file(file)
            _check_header(file)
            return tensors
    if name.endswith(NUMPY_SUFFIX):
        return {"": _array(name, file, path)}
    loaded = _load(name, file, path)
    tensors = {"": loaded} if isinstance(loaded, torch.Tensor) else _named(loaded, name, path)
    for key, value in tensors.items():
        _check_tensor(value, key, name, path, "save only tensors")
    return tensors


def _check_header(file: Path) -> None:
    """Raises ValueError if the header of a safetensors file has a key twice."""
    with file.open("rb") as opened:
        safetensors_header.read(opened)


def _array(name: str, file: Path, path: DocumentPath) -> torch.Tensor:
    """The array of a .npy file. Code in it does not run."""
    import numpy as np

    with wrap_library_errors(InputError, path, f"cannot read `{name}`"):
        array = np.load(file, mmap_mode="r", allow_pickle=False)  # so a short file cannot claim a large array
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape))


def all_tensors(name: str, file: Path, path: DocumentPath) -> dict[str, torch.Tensor]:
    """All tensors of a torch.save file by name. Those of state dicts in it are called `KEY/NAME`.

    Leaves out tensors without memory for every number, such as sparse ones: no module can have them as weights.

    Args:
        name: The file's name in the manifest.
        file: The file.
        path: The document path of that name.

    Raises:
        InputError: The file cannot be read.
    """
    loaded = _load(name, file, path)
    if not isinstance(loaded, Mapping):
        return {}
    states = {**{f"{key}/": value for key, value in loaded.items() if isinstance(value, Mapping)}, "": loaded}
    values = {f"{key}{tensor_name}": value for key, state in states.items() for tensor_name, value in state.items()}
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    return {key: value for key, value in tensors.items() if not any(_unusual(value)) and not value.is_quantized}


def _load(name: str, file: Path, path: DocumentPath) -> Any:
    """The content of a torch.save file. Code in the file does not run."""
    with wrap_library_errors(InputError, path, f"cannot read `{name}`"):
        _check_kind(name, file, path)
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=_can_be_mapped(file))
        except pickle.UnpicklingError as error:
            code = _CODE.search(str(error))
            if code is None:
                raise
        except (LookupError, AttributeError, TypeError, EOFError) as error:  # the pickle is damaged
            raise InputError.at(path, f"`{name}` is damaged: its pickle cannot be read", "save it again") from error
    message = f"`{name}` holds more than data: it needs the code of `{code[1]}`, which does not run"
    hint = "save only the state dict: `torch.save(module.state_dict(), ...)`. "
    hint += "If you trust the file, `torch.load(..., weights_only=False)` in Python gives its content"
    raise InputError.at(path, message, hint)


def _check_kind(name: str, file: Path, path: DocumentPath) -> None:
    """Refuses a file that holds TorchScript, or that is not from torch.save."""
    with file.open("rb") as opened:
        beginning = opened.read(_HEADER_START + 1)
    if beginning[_HEADER_START:] == b"{":
        raise InputError.at(path, f"`{name}` is a safetensors file", "give it a name that ends in .safetensors")
    if not beginning.startswith(_TORCH_MAGIC):
        raise InputError.at(
            path, f"`{name}` is not a file of torch.save", "its name says so: rename or replace the file"
        )
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            parts = {entry.rpartition("/")[2] for entry in archive.namelist()}
        if "constants.pkl" in parts:
            hint = "save its state dict: `torch.save(torch.jit.load(...).state_dict(), ...)`"
            raise InputError.at(path, f"`{name}` holds a module of TorchScript, not a state dict", hint)


def _can_be_mapped(file: Path) -> bool:
    """Whether the tensors of a file can be read from a mapping of it. Raises ValueError if the file is damaged, because
    PyTorch does not verify checksums of mapped files."""
    if not zipfile.is_zipfile(file):  # before 1.6, PyTorch wrote another format
        return False
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            return False
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"its part {damaged} is damaged")
    return True


def _state_dict(loaded: Any, name: str, path: DocumentPath, key: str | None) -> tuple[Any, str]:
    """The state dict in a checkpoint, and its key. Training code often saves other data too, such as the optimizer's
    state. If there are several state dicts, the manifest must choose one by its key."""
    if key is not None:
        return _value_at_key(loaded, name, path, key, ""), key
    key_so_far = ""
    for _ in range(_MAX_DEPTH):
        # Single numbers, which training code may save as tensors, do not count: for example the number of the epoch.
        values = loaded.values() if isinstance(loaded, Mapping) else ()
        nested = _states(loaded)
        if not nested or any(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values):
            break
        if len(nested) > 1:
            hint = f"choose one: `weights: {{file: {name}, key: {key_so_far}{next(iter(nested))}}}`"
            raise InputError.at(path, f"`{name}` holds several state dicts: {_shown(nested, key_so_far)}", hint)
        [(nested_key, loaded)] = nested.items()
        key_so_far += f"{nested_key}."
    return loaded, key_so_far.removesuffix(".")


def _value_at_key(loaded: Any, name: str, path: DocumentPath, key: str, prefix: str) -> Any:
    """The value at a key of a checkpoint, or of a part of it. A dot in the key leads into a nested state dict. `prefix`
    is the key of the part in the whole checkpoint, with a dot at its end."""
    nested = _states(loaded)
    if key in nested:
        return nested[key]
    for nested_key, part in nested.items():
        if key.startswith(f"{nested_key}."):
            return _value_at_key(part, name, path, key.removeprefix(f"{nested_key}."), f"{prefix}{nested_key}.")
    message = f"`{name}` has no state dict `{prefix}{key}`"
    raise InputError.at((*path, "key"), message, f"it has {_shown(nested, prefix)}" if nested else "remove `key`")


def _shown(nested: Mapping[str, Any], prefix: str) -> str:
    return ", ".join(f"`{prefix}{key}`" for key in list(nested)[:_MOST_KEYS])


def _states(loaded: Any) -> dict[str, Mapping[Any, Any]]:
    """The mappings in a checkpoint that may be the state dict: they contain a tensor, at any depth."""
    entries = loaded.items() if isinstance(loaded, Mapping) else ()
    return {str(key): value for key, value in entries if isinstance(value, Mapping) and _holds_tensor(value)}


def _holds_tensor(value: Any) -> bool:
    """Whether a value contains a tensor, at any depth. The state of an optimizer does not count."""
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            return True
        if id(part) in seen or (isinstance(part, Mapping) and part.keys() == {"state", "param_groups"}):
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return False


def _named(loaded: Any, name: str, path: DocumentPath) -> dict[str, object]:
    if not isinstance(loaded, Mapping):
        raise InputError.at(path, f"`{name}` is not a mapping of names to tensors")
    for key in loaded:
        if not isinstance(key, str):
            raise InputError.at(path, f"`{name}` is not a state dict: its key {key!r} is not a name")
    return dict(loaded)


def _check_tensor(value: Any, key: str, name: str, path: DocumentPath, hint: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise InputError.at(path, f"`{key}` in `{name}` is not a tensor", hint)
    for unusual, advice in _unusual(value):
        raise InputError.at(path, f"`{key}` in `{name}` is {unusual}", advice)


def _unusual(tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
    """The reason why a tensor of a file is not a plain one, with a hint."""
    if tensor.is_nested:
        yield "a nested tensor", "save its parts, or a padded tensor"
    elif tensor.layout is not torch.strided:
        yield "a sparse tensor", "save it with `tensor.to_dense()`"
    elif tensor.is_meta:
        yield "on the meta device and has no content", "save it from the CPU"
    elif is_traceable_wrapper_subclass(tensor):
        hint = "save it before it is quantized, or with `tensor.dequantize()`; `quantize` in the manifest quantizes it"
        yield f"a tensor of the class {type(tensor).__name__}", hint
    elif tensor.nbytes > max(_MAX_REPEATED, tensor.untyped_storage().nbytes()):
        yield f"a tensor of {tensor.nbytes} bytes that repeats a few numbers", "save it without `expand`"
