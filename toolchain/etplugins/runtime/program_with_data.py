"""Loads a program with named data in the runtime of ExecuTorch 1.4.

Its `Runtime.load_program` takes no named data. An older function does, and loads a program as C++'s `Module` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class ProgramWithData:
    """A loaded program, with those methods of `executorch.runtime.Program` that a session calls."""

    def __init__(self, program: Path, *, data_path: Path, verification: Any, enable_etdump: bool) -> None:
        """Loads a program.

        Args:
            program: The program.
            data_path: Its named data.
            verification: How much of the program the runtime checks.
            enable_etdump: Whether the runtime records its events.

        Raises:
            RuntimeError: The runtime refuses the program.
        """
        from executorch.extension.pybindings.portable_lib import _load_for_executorch

        self._program = _load_for_executorch(
            str(program), str(data_path), enable_etdump=enable_etdump, program_verification=verification
        )

    def load_method(self, name: str) -> _Method:
        """A method. The runtime loads it at its first call."""
        return _Method(self._program, name)

    def write_etdump_result_to_file(self, path: str, values: str) -> None:
        """Writes the events that were recorded."""
        self._program.write_etdump_result_to_file(path, values)


class _Method:
    """A method of the program. Its buffers cannot be read."""

    def __init__(self, program: Any, name: str) -> None:
        self._method, self._program, self._name = self, program, name

    def method_meta(self) -> _Method:
        return self

    def num_attributes(self) -> int:
        return 0

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        outputs: list[Any] = self._program.run_method(self._name, inputs)
        return outputs
