"""Loads a program into this process and calls its methods. Use it in a child process: `child.run`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from etbuild.errors import BuildError, InputError, counted
from etbuild.exception_text import summary
from etbuild.model.tensor_bytes import dtype_name
from etplugins.runtime.program_files import ProgramFiles, has_own_kernel

if TYPE_CHECKING:
    from etbuild.results import Value


class Session:
    """A loaded program. It keeps its state from one call to the next."""

    def __init__(self, files: ProgramFiles, scratch: Path, record: bool = False) -> None:
        """Loads a program.

        Args:
            files: Its files.
            scratch: A directory that exists longer than the session.
            record: Whether the runtime records its events, for `write_events`.

        Raises:
            InputError: The runtime lacks a backend that the program calls.
            BuildError: The runtime refuses the program.
        """
        register_kernels(files)
        from executorch.runtime import Runtime, Verification

        missing = unavailable(files)
        if missing:
            raise InputError.of(f"the runtime here has no backend `{missing[0]}`", "run the program on its device")
        self._files = files
        data = merged(files.named_data, scratch) if len(files.named_data) > 1 else next(iter(files.named_data), None)
        load: Callable[..., Any] = Runtime.get().load_program
        if data is not None and "data_path" not in inspect.signature(load).parameters:
            from etplugins.runtime.program_with_data import ProgramWithData

            if files.shares_state:
                message = "this release of ExecuTorch cannot load named data from Python for methods that share state"
                raise BuildError.of(message, "keep the weights in the program, or use ExecuTorch 1.5")
            load = ProgramWithData
        self._load = partial(
            load,
            verification=Verification.InternalConsistency,
            enable_etdump=record,
            **({} if data is None else {"data_path": data}),
        )
        self._programs: dict[str, Any] = {}
        self.load_program(next(iter(files.facts["methods"])))

    def call(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Calls a method.

        Args:
            method: Its name.
            inputs: Its inputs, in the order of the program: tensors, numbers, booleans or None.

        Returns:
            Its outputs, in the order of the program: tensors, numbers or None.

        Raises:
            InputError: There is no such method, or the inputs do not fit.
            BuildError: The runtime refuses the method or its inputs.
        """
        given = [None if isinstance(value, str) else value for value in inputs]
        check_inputs(self._files, method, given)
        try:
            outputs = self.load(method).execute(laid_out(given, self._files.method(method)["inputs"]))
        except RuntimeError as error:
            raise BuildError.of(f"the runtime cannot run `{method}`: {summary(error)}") from error
        return [value.clone() if isinstance(value, torch.Tensor) else value for value in outputs]

    def load(self, method: str) -> Any:
        """Returns a method of ExecuTorch's runtime. It is loaded the first time.

        Raises:
            BuildError: The runtime refuses the program.
            RuntimeError: The runtime refuses the method.
        """
        return self.load_program(method).load_method(method)

    def kernels(self, method: str) -> Collection[str]:
        """The kernels of the runtime that a method calls."""
        operators: Collection[str] = self._files.method(method)["operators"]
        return operators

    def forget(self) -> None:
        """Forgets the loaded program with its state."""
        self._programs.clear()

    def write_events(self, method: str, path: Path) -> None:
        """Writes an ETDump: the events of loading a method and of its calls. The session must record them.

        Args:
            method: A method that was called.
            path: The file to write.

        Raises:
            BuildError: The runtime cannot record events.
        """
        program = self.load_program(method)
        if not program._program.has_etdump():
            hint = "record on a device and name the file with `--from`: see the page `Profiles`"
            raise BuildError.of("the runtime here was built without an event tracer, so it cannot record events", hint)
        program.write_etdump_result_to_file(str(path), str(path.with_name(f"{path.name}.values")))

    def state(self, method: str, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The buffers of a method that the program holds by name. This needs `emit_mutable_buffer_names`.

        Args:
            method: A method that was called.
            names: Names of buffers. Names that the program does not hold are left out.
        """
        found = {}
        loaded = self.load(method)._method
        for name in names if loaded.method_meta().num_attributes() else ():
            with suppress(RuntimeError):
                found[name] = loaded.get_attribute(name).clone()
        return found

    def load_program(self, method: str) -> Any:
        """The program for a method. It is loaded the first time.

        In the Python runtime, the methods of one program use the same memory, and overwrite each other's state. So each
        method gets its own program, as in C++'s `Module`, unless the program has memory that methods share.

        Raises:
            BuildError: The runtime refuses the program.
        """
        key = "" if self._files.shares_state else method
        if key not in self._programs:
            try:
                self._programs[key] = self._load(self._files.program)
            except RuntimeError as error:
                message = f"the runtime cannot load {self._files.program.name}: {summary(error)}"
                raise BuildError.of(message) from error
        return self._programs[key]


def register_kernels(files: ProgramFiles) -> None:
    """Imports the packages whose kernels a program may call."""
    import executorch.kernels.quantized  # noqa: F401 - registers kernels, as the next import does

    if any(map(has_own_kernel, files.operators)):
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401


def unavailable(files: ProgramFiles) -> list[str]:
    """The backends that the program calls and that the runtime of this process lacks."""
    from executorch.runtime import Runtime

    registry = Runtime.get().backend_registry
    return [name for name in files.delegates if not registry.is_available(name)]


def check_inputs(files: ProgramFiles, method: str, inputs: Sequence[Any]) -> None:
    """Compares inputs with the inputs of a method. The runtime itself would only report an error number.

    Raises:
        InputError: There is no such method, or the inputs do not fit.
    """
    wanted = files.method(method)["inputs"]
    if len(inputs) != len(wanted):
        raise InputError.of(f"`{method}` takes {counted(len(wanted), 'input')}, not {len(inputs)}")
    for number, (value, fact) in enumerate(zip(inputs, wanted, strict=True)):
        if not isinstance(value, torch.Tensor) or "dtype" not in fact:
            continue
        dtype, shape = dtype_name(value.dtype), list(value.shape)
        if dtype != fact["dtype"]:
            raise InputError.of(f"input {number} of `{method}` is {dtype}, and the program takes {fact['dtype']}")
        largest = fact["shape"]
        fits = len(shape) == len(largest) and all(
            size <= most if fact["dynamic"] else size == most for size, most in zip(shape, largest, strict=True)
        )
        if not fits:
            at_most = " at most" if fact["dynamic"] else ""
            message = f"input {number} of `{method}` has the shape {shape}, and the program takes{at_most} {largest}"
            raise InputError.of(message)


def laid_out(values: Sequence[Any], facts: Sequence[Value]) -> list[Any]:
    """Inputs or outputs of a method, with the elements of tensors in the order in which the program has them in memory.
    The runtime does not check the order of inputs.

    Args:
        values: The inputs or outputs. They fit the method.
        facts: The program's facts about them.
    """
    return [_laid_out(value, fact) for value, fact in zip(values, facts, strict=True)]


def _laid_out(value: Any, fact: Value) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if "dtype" not in fact or "dim_order" not in fact:
        return value.contiguous()
    order = fact["dim_order"]
    return value.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def merged(files: Sequence[Path], directory: Path) -> Path:
    """One `.ptd` with the content of several, in a directory: the Python runtime takes only one."""
    from executorch.exir._serialize._cord import Cord
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir._serialize.data_serializer import DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    store = NamedDataStore()
    for file in files:
        payload = FlatTensorSerializer().deserialize(Cord(file.read_bytes()))
        for key, entry in payload.named_data.items():
            layout = entry.tensor_layout
            store.add_named_data(key, payload.buffers[entry.buffer_index], external_tag="", tensor_layout=layout)
    output = store.get_named_data_store_output()
    path = directory / "merged.ptd"
    path.write_bytes(bytes(FlatTensorSerializer().serialize(DataPayload(output.buffers, output.external_data[""]))))
    return path
