"""The files of a program: the `.pte` and its named data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import backends
from etbuild.errors import InputError, did_you_mean
from etbuild.files import flatbuffer, json_file
from etbuild.surroundings.library_output import library_messages_off

if TYPE_CHECKING:
    from etbuild.results import ProgramFile, ProgramMethod

_OF_LANGUAGE_MODELS = "llama::"


def has_own_kernel(operator: str) -> bool:
    """Whether ExecuTorch's package has a kernel that the runtime gets only when a session imports it."""
    return operator.startswith(_OF_LANGUAGE_MODELS)


@dataclass(frozen=True)
class ProgramFiles:
    """A program and its named data.

    Attributes:
        program: The `.pte`.
        named_data: The `.ptd` files.
        facts: The content of the `.pte`.
    """

    program: Path
    named_data: tuple[Path, ...]
    facts: ProgramFile

    def method(self, name: str) -> ProgramMethod:
        """The facts of a method.

        Raises:
            InputError: The program has no such method.
        """
        methods = self.facts["methods"]
        if name not in methods:
            raise InputError.of(f"{self.program}: the program has no method `{name}`", did_you_mean(name, methods))
        return methods[name]

    def only_method(self) -> str:
        """The name of the only method with instructions.

        Raises:
            InputError: There are several.
        """
        methods = self.facts["methods"]
        running = [name for name, facts in methods.items() if facts["operators"] or facts["delegates"]]
        if len(running) != 1:
            raise InputError.of(f"{self.program.name} has several methods", f"name one of them: {', '.join(methods)}")
        return running[0]

    @property
    def delegates(self) -> list[str]:
        """The backends that the program calls, by their names in the runtime, sorted."""
        return sorted({name for method in self.facts["methods"].values() for name in method["delegates"]})

    @property
    def shares_state(self) -> bool:
        """Whether methods share memory for their state. ExecuTorch plans it separately from intermediate results."""
        return any(len(method["memory"]) > 1 for method in self.facts["methods"].values())

    @property
    def operators(self) -> set[str]:
        """The operators that the program calls."""
        return {name for method in self.facts["methods"].values() for name in method["operators"]}


def read(program: Path, named_data: Sequence[Path] = ()) -> ProgramFiles:
    """Finds the files of a program.

    Args:
        program: The `.pte`.
        named_data: Its `.ptd` files, or directories of them. Default: the files in the index beside the program.

    Raises:
        InputError: A file is missing, damaged, or no program. (Without its named data, the runtime would crash.)
    """
    with library_messages_off():
        from etbuild.files.program_file import describe

    facts = describe(program)
    if facts["kind"] != "program":
        raise InputError.of(f"{program}: named data, not a program", "name the .pte")
    listed = None if named_data else _of_index(program)
    files = tuple(listed or _with_shards(named_data))
    for file in files:
        if not file.is_file():
            raise InputError.of(f"{program.name} needs {file.name}, and there is no {file}")
    if listed is None:  # the index of a build lists all of them
        _check_complete(program, files)
    return ProgramFiles(program, files, facts)


def _with_shards(named_data: Sequence[Path]) -> Iterator[Path]:
    """The files, with those of each directory in place of the directory."""
    for path in named_data:
        yield from sorted(path.glob("*.ptd")) if path.is_dir() else [path]


def _check_complete(program: Path, named_data: Sequence[Path]) -> None:
    """Raises InputError if the program or a delegate asks for a key that no file has."""
    from etbuild.files import program_file

    with flatbuffer.read_safely(program):
        file = program_file.read_program_file(program)
        missing = {*program_file.external_keys(file)}
        for delegate in itertools.chain(*(plan.delegates for plan in file.program.execution_plan)):
            compiled = file.program.backend_delegate_data[delegate.processed.index].data
            ours = [each for each in backends.BACKENDS.values() if each.delegate_id == delegate.id]
            missing.update(*(each.named_data_keys(compiled) for each in ours))
        missing -= program_file.pte_named_data(file).keys()
    for path in named_data:
        with flatbuffer.read_safely(path):
            missing -= program_file.named_data_facts(path).keys()
    if missing:
        message = f"{program.name} needs a file of named data: it has no tensor `{min(missing)}`"
        raise InputError.of(message, "name it with `--named-data`, or keep the index in the program's directory")


def _of_index(program: Path) -> tuple[Path, ...] | None:
    """The files that the index lists; None if there is no index."""
    index = program.with_name(f"{program.name.removesuffix('.pte')}.index.json")
    if not index.is_file():
        return None
    artifacts = json_file.read(index, json_file.Format("an index", "index"))["artifacts"]
    return tuple(program.parent / each["file"] for each in artifacts if each["kind"] == "named_data")
