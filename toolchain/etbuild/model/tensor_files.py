"""Opens files with tensors. The tensors are read one by one, so that a checkpoint need not fit into memory twice."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.errors import DocumentPath, InputError
from etbuild.files import safetensors_header
from etbuild.files.weights_suffixes import GGUF_SUFFIX, NUMPY_SUFFIX
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.checkpoints import check_content
from etbuild.model.tensor_bytes import dtype_name

if TYPE_CHECKING:
    from etbuild.model.packed.integers import Integers

_ENTRIES_SHOWN = 5
_MAPPED = 16 << 20  # bytes that are read of a file before it is mapped again
_REPEATED = 1 << 30  # bytes: a small file may claim a tensor of any size that repeats one number
_DEEPEST = 8  # state dicts in state dicts: a mapping may hold itself
_BEFORE_HEADER = 8  # bytes before the `{` of a safetensors file
_OF_TORCH = (b"PK\3\4", b"\x80")  # an archive, or a pickle
_CODE = re.compile(r"GLOBAL ([\w.]+)")  # in a message of torch.load
_SMALL = 1 << 16  # bytes: a view of less would keep too much in memory


class TensorFile:
    """A file with tensors, of which this process has all. Subclasses are files that are read later.

    Args:
        tensors: The tensors by name.

    Attributes:
        is_mapped: Whether its tensors are views of the mapped file, or in memory anyway.
    """

    is_mapped = False

    def __init__(self, tensors: dict[str, object]) -> None:
        self._tensors = tensors
        self.names = list(tensors)

    def check(self, names: Iterable[str]) -> None:
        """Checks that these names are those of tensors that can be read.

        Raises:
            InputError: One is something else.
        """

    def form(self, name: str) -> tuple[str, list[int]]:
        """PyTorch's name of a tensor's dtype, and its shape."""
        tensor: torch.Tensor = self._tensors[name]
        return dtype_name(tensor.dtype), list(tensor.shape)

    def take(self, name: str) -> torch.Tensor:
        """A tensor."""
        tensor: torch.Tensor = self._tensors[name]
        return tensor

    def content(self, name: str) -> torch.Tensor | Integers:
        """A tensor, or the integers of a packed one."""
        return self.take(name)


class _Safetensors(TensorFile):
    """A safetensors file. Its large tensors are views of the mapped file, and small ones are copies.

    What was read of a mapped file counts as memory of the process until nothing has a view of it. So the file is mapped
    again from time to time: then the caller can convert a checkpoint that does not fit into memory twice.
    """

    is_mapped = True

    def __init__(self, name: str, file: Path, place: DocumentPath) -> None:
        from safetensors.torch import _TYPES

        self._name, self._file, self._place = name, file, place
        self._dtypes: dict[str, torch.dtype] = _TYPES
        self._open()
        with wrap_library_errors(InputError, place, f"cannot read `{name}`"):
            _check_header(file)
        super().__init__(dict.fromkeys(self._opened.keys()))

    def _open(self) -> None:
        from safetensors import safe_open

        action = f"cannot read `{self._name}`"
        with self._file.open("rb") as file:  # torch.save begins a file with an archive or a pickle
            of_torch = file.read(4) in (b"PK\3\4", b"\x80\x02\x8a\x0a")
        hint = "it is a file of torch.save: give it a name that ends in .pt" if of_torch else None
        with wrap_library_errors(InputError, self._place, action, hint):
            self._opened: Any = safe_open(self._file, framework="pt")
        self._taken = 0  # bytes since the file was mapped

    def form(self, name: str) -> tuple[str, list[int]]:
        described = self._opened.get_slice(name)
        code = described.get_dtype()
        return str(self._dtypes.get(code, code)).removeprefix("torch."), described.get_shape()

    def take(self, name: str) -> torch.Tensor:
        if self._taken > _MAPPED:
            self._open()
        tensor: torch.Tensor = self._opened.get_tensor(name)
        self._taken += tensor.nbytes
        return tensor if tensor.nbytes > _SMALL else tensor.clone()


class _Loaded(TensorFile):
    """A file of torch.save, as a mapping. The tensors of a current file are views of the mapped file."""

    is_mapped = True

    def __init__(self, loaded: Any, name: str, place: DocumentPath, key: str) -> None:
        super().__init__(_named(loaded, name, place))
        self._file, self._place, self._key = name, place, f"{key}." if key else ""

    def check(self, names: Iterable[str]) -> None:
        """Checks that these names are those of tensors with a place for each number."""
        hint = "list it under `ignore` of `weights`, or save only the state dict of the module"
        states = _states(self._tensors)
        for name in names:
            # Training code may save a tensor beside the state dict, such as the state of a generator of random numbers.
            choose = f"if it is the state dict, write `weights: {{file: {self._file}, key: {self._key}{name}}}`; else "
            more = choose if name in states else ""
            _check_tensor(self._tensors[name], name, self._file, self._place, more + hint)


def open_checkpoint(
    name: str, file: Path, place: DocumentPath, key: str | None = None, module: torch.nn.Module | None = None
) -> TensorFile:
    """Opens one file of a checkpoint.

    Args:
        name: The file's name in the manifest.
        file: The file.
        place: The place in the manifest that names it.
        key: The key of the state dict, if a file of torch.save holds several.
        module: The module. Only GGUF files need it.

    Raises:
        InputError: The file cannot be read, or it is not clear what its state dict is.
    """
    check_content(name, file, place)
    if key is not None and name.endswith((".safetensors", GGUF_SUFFIX)):
        message = f"`key` goes with files of torch.save, and `{name}` is another file"
        raise InputError.at((*place, "key"), message, "remove it")
    if name.endswith(GGUF_SUFFIX):
        from etbuild.model import gguf_file

        return gguf_file.opened(name, file, place, module)
    if name.endswith(".safetensors"):
        return _Safetensors(name, file, place)
    loaded, at = _state_dict(_load(name, file, place), name, place, key)
    return _Loaded(loaded, name, place, at)


def read_tensors(name: str, file: Path, place: DocumentPath) -> dict[str, torch.Tensor]:
    """Reads the tensors of a safetensors, torch.save or NumPy file.

    Args:
        name: The file's name in the manifest.
        file: The file.
        place: The document path of that name.

    Returns:
        The tensors by name. If a file is a tensor and not a mapping, its name is "".

    Raises:
        InputError: The file cannot be read, or contains something other than tensors.
    """
    check_content(name, file, place)
    if name.endswith(".safetensors"):
        with wrap_library_errors(InputError, place, f"cannot read `{name}`"):
            from safetensors.torch import load_file

            tensors: dict[str, torch.Tensor] = load_file(file)
            _check_header(file)
            return tensors
    if name.endswith(NUMPY_SUFFIX):
        return {"": _array(name, file, place)}
    loaded = _load(name, file, place)
    found = {"": loaded} if isinstance(loaded, torch.Tensor) else _named(loaded, name, place)
    for key, value in found.items():
        _check_tensor(value, key, name, place, "save only tensors")
    return found


def _check_header(file: Path) -> None:
    """Raises ValueError if the header of a safetensors file has a key twice."""
    with file.open("rb") as opened:
        safetensors_header.read(opened)


def _array(name: str, file: Path, place: DocumentPath) -> torch.Tensor:
    """The array of a .npy file. Code in it does not run."""
    import numpy as np

    with wrap_library_errors(InputError, place, f"cannot read `{name}`"):
        array = np.load(file, mmap_mode="r", allow_pickle=False)  # a short file cannot claim a large array
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape))


def all_tensors(name: str, file: Path, place: DocumentPath) -> dict[str, torch.Tensor]:
    """All tensors of a torch.save file by name, also those of state dicts in it, as `KEY/NAME`. Tensors without a place
    for each number, such as sparse ones, are left out: no module can have them as weights.

    Args:
        name: The file's name in the manifest.
        file: The file.
        place: The document path of that name.

    Raises:
        InputError: The file cannot be read.
    """
    loaded = _load(name, file, place)
    if not isinstance(loaded, Mapping):
        return {}
    states = {**{f"{at}/": value for at, value in loaded.items() if isinstance(value, Mapping)}, "": loaded}
    found = {f"{at}{own}": value for at, state in states.items() for own, value in state.items()}
    tensors = {at: value for at, value in found.items() if isinstance(value, torch.Tensor)}
    return {at: value for at, value in tensors.items() if not any(_unusual(value)) and not value.is_quantized}


def _load(name: str, file: Path, place: DocumentPath) -> Any:
    """What a file of torch.save holds. Code in it does not run."""
    with wrap_library_errors(InputError, place, f"cannot read `{name}`"):
        _check_kind(name, file, place)
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=_can_be_mapped(file))
        except pickle.UnpicklingError as error:
            code = _CODE.search(str(error))
            if code is None:
                raise
        except (LookupError, AttributeError, TypeError, EOFError) as error:  # of a pickle that makes no sense
            raise InputError.at(place, f"`{name}` is damaged: its pickle cannot be read", "save it again") from error
    message = f"`{name}` holds more than data: it needs the code of `{code[1]}`, which does not run"
    hint = "save only the state dict: `torch.save(module.state_dict(), ...)`. "
    hint += "If you trust the file, `torch.load(..., weights_only=False)` in Python gives what is in it"
    raise InputError.at(place, message, hint)


def _check_kind(name: str, file: Path, place: DocumentPath) -> None:
    """Refuses a file that holds TorchScript, or that torch.save has not written."""
    with file.open("rb") as opened:
        beginning = opened.read(_BEFORE_HEADER + 1)
    if beginning[_BEFORE_HEADER:] == b"{":
        raise InputError.at(place, f"`{name}` is a safetensors file", "give it a name that ends in .safetensors")
    if not beginning.startswith(_OF_TORCH):
        raise InputError.at(
            place, f"`{name}` is not a file of torch.save", "its name says so: rename or replace the file"
        )
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            parts = {entry.rpartition("/")[2] for entry in archive.namelist()}
        if "constants.pkl" in parts:
            hint = "save its state dict: `torch.save(torch.jit.load(...).state_dict(), ...)`"
            raise InputError.at(place, f"`{name}` holds a module of TorchScript, not a state dict", hint)


def _can_be_mapped(file: Path) -> bool:
    """Whether the tensors of a file can be read from a mapping of it. Raises ValueError if it is damaged: PyTorch
    checks no sums of what it maps."""
    if not zipfile.is_zipfile(file):  # PyTorch wrote another format before 1.6
        return False
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            return False
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"its part {damaged} is damaged")
    return True


def _state_dict(loaded: Any, name: str, place: DocumentPath, key: str | None) -> tuple[Any, str]:
    """The state dict in a checkpoint, and its key. Training code often saves it with other things, such as the
    optimizer's state. If there are several, the manifest has to name the key."""
    if key is not None:
        return _at_key(loaded, name, place, key, ""), key
    at = ""
    for _ in range(_DEEPEST):
        # Training code also saves single numbers as tensors, such as the number of the epoch.
        own = loaded.values() if isinstance(loaded, Mapping) else ()
        nested = _states(loaded)
        if not nested or any(isinstance(value, torch.Tensor) and value.dim() > 0 for value in own):
            break
        if len(nested) > 1:
            hint = f"choose one: `weights: {{file: {name}, key: {at}{next(iter(nested))}}}`"
            raise InputError.at(place, f"`{name}` holds several state dicts: {_shown(nested, at)}", hint)
        [(first, loaded)] = nested.items()
        at += f"{first}."
    return loaded, at.removesuffix(".")


def _at_key(loaded: Any, name: str, place: DocumentPath, key: str, before: str) -> Any:
    """What a checkpoint, or a part of it, holds under a key. A dot leads into a state dict in a state dict. `before` is
    the key of the part in the whole, with a dot at its end."""
    nested = _states(loaded)
    if key in nested:
        return nested[key]
    for first, part in nested.items():
        if key.startswith(f"{first}."):
            return _at_key(part, name, place, key.removeprefix(f"{first}."), f"{before}{first}.")
    message = f"`{name}` has no state dict `{before}{key}`"
    raise InputError.at((*place, "key"), message, f"it has {_shown(nested, before)}" if nested else "remove `key`")


def _shown(nested: Mapping[str, Any], before: str) -> str:
    return ", ".join(f"`{before}{key}`" for key in list(nested)[:_ENTRIES_SHOWN])


def _states(loaded: Any) -> dict[str, Mapping[Any, Any]]:
    """The mappings in a checkpoint that may be the wanted state dict: those that hold a tensor, at any depth."""
    found = loaded.items() if isinstance(loaded, Mapping) else ()
    return {str(at): value for at, value in found if isinstance(value, Mapping) and _holds_tensor(value)}


def _holds_tensor(value: Any) -> bool:
    """Whether there is a tensor in a value, at any depth. The state of an optimizer does not count."""
    rest, seen = [value], set[int]()
    while rest:
        one = rest.pop()
        if isinstance(one, torch.Tensor):
            return True
        if id(one) in seen or (isinstance(one, Mapping) and one.keys() == {"state", "param_groups"}):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            rest += one.values()
        elif isinstance(one, (list, tuple)):
            rest += one
    return False


def _named(loaded: Any, name: str, place: DocumentPath) -> dict[str, object]:
    if not isinstance(loaded, Mapping):
        raise InputError.at(place, f"`{name}` is not a mapping of names to tensors")
    for key in loaded:
        if not isinstance(key, str):
            raise InputError.at(place, f"`{name}` is not a state dict: its key {key!r} is not a name")
    return dict(loaded)


def _check_tensor(value: Any, key: str, name: str, place: DocumentPath, hint: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise InputError.at(place, f"`{key}` in `{name}` is not a tensor", hint)
    for unusual, instead in _unusual(value):
        raise InputError.at(place, f"`{key}` in `{name}` is {unusual}", instead)


def _unusual(tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
    """What keeps a tensor of a file from being a plain one, and a hint."""
    if tensor.is_nested:
        yield "a nested tensor", "save its parts, or a padded tensor"
    elif tensor.layout is not torch.strided:
        yield "a sparse tensor", "save it with `tensor.to_dense()`"
    elif tensor.is_meta:
        yield "on the meta device and has no content", "save it from the CPU"
    elif is_traceable_wrapper_subclass(tensor):
        hint = "save it before it is quantized, or with `tensor.dequantize()`; `quantize` in the manifest quantizes it"
        yield f"a tensor of the class {type(tensor).__name__}", hint
    elif tensor.nbytes > max(_REPEATED, tensor.untyped_storage().nbytes()):
        yield f"a tensor of {tensor.nbytes} bytes that repeats a few numbers", "save it without `expand`"
