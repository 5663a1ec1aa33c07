"""The places of the methods that are lowered one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from etbuild.errors import InputError
from etbuild.files import writing
from etbuild.files.digests import digest
from etbuild.plan.step_plans import MethodPlan
from etbuild.steps.one_by_one import KeptMethods

WEIGHTS = ".weights"
"""The ending, after the method's name, of the directory of a method that is lowered with the content of weights."""
_NAMES = "methods.txt"  # no name of a method


def _with_weights(directory: Path, name: str) -> Path:
    return directory / f"{name}{WEIGHTS}"


def places_of(directory: Path, name: str) -> tuple[Path, Path]:
    """The directories of a method, in that of a store: if it was lowered without the content of weights, and with."""
    return directory / name, _with_weights(directory, name)


class MethodStore:
    """The directories of methods that are lowered one by one."""

    def __init__(self, directory: Path, kept: KeptMethods | None = None) -> None:
        """Args:
        directory: An existing directory for the directories of the methods.
        kept: Has some of the methods, and keeps the others. None: nothing does.
        """
        self.directory = directory
        self._kept = kept or KeptMethods()

    def directories(self, names: Collection[str], *, weights: bool) -> tuple[dict[str, Path], dict[str, Path]]:
        """The directories of methods; and those of them that are empty, because nothing has kept the method.

        Args:
            names: The names of the methods.
            weights: Whether the methods are lowered with the content of weights.
        """
        places = {name: _with_weights(self.directory, name) if weights else self.directory / name for name in names}
        for path in places.values():
            path.mkdir()
        return places, {
            name: path for name, path in places.items() if not self._kept.fetch(name, path, weights=weights)
        }

    def keep(self, directories: Mapping[str, Path], *, weights: bool) -> AbstractContextManager[None]:
        """Keeps methods that are lowered into these directories, by name, within this context."""
        return self._kept.keep(directories, weights=weights)


def write_names(directory: Path, plan: MethodPlan) -> None:
    """Writes the methods of a store's directory, and how they are lowered. A build system may lose an empty directory.

    Raises:
        BuildError: The file cannot be written.
    """
    names = "".join(f"{name} {_how(plan, name)}\n" for name in plan.methods)
    writing.write(directory, _NAMES, "lowered", names.encode())


def _how(plan: MethodPlan, name: str) -> str:
    return digest(plan.of_method(name).without_weights.to_json())


def _read_names(directory: Path) -> dict[str, str]:
    try:
        lines = (directory / _NAMES).read_text("utf-8").splitlines()
        return {name: how for name, _, how in (line.partition(" ") for line in lines)}
    except (OSError, ValueError) as error:
        raise InputError.of(f"{directory}: not what `etbuild lower --templates` wrote: {error}") from None


class LoweredBefore(MethodStore):
    """A store with methods of earlier actions. It keeps none."""

    def __init__(self, directory: Path, lowered: Sequence[Path]) -> None:
        """Args:
        directory: An existing directory for the directories of the other methods.
        lowered: The directories of stores, each with the file of `write_names`.

        Raises:
            InputError: A directory is not one of these.
        """
        super().__init__(directory)
        self._lowered = {name: path for path in lowered for name in _read_names(path)}
        self._how = {name: how for path in lowered for name, how in _read_names(path).items()}

    def check(self, plan: MethodPlan) -> None:
        """Checks that the earlier actions tried to lower the methods of a plan with the plan's settings.

        Raises:
            InputError: They did not.
        """
        if sorted(self._lowered) != sorted(plan.methods):
            names = ", ".join(sorted(self._lowered))
            raise InputError.of(f"--lowered has {names}; the plan has {', '.join(plan.methods)}")
        if other := [name for name, how in self._how.items() if how != _how(plan, name)]:
            message = f"`{other[0]}` was lowered with other settings, by the target of `lowered`"
            hint = "leave out `lowered`: programs can share lowered methods if only their weights differ"
            raise InputError.at(("methods", other[0]), message, hint)

    def directories(self, names: Collection[str], *, weights: bool) -> tuple[dict[str, Path], dict[str, Path]]:
        """The directories of methods; and those of them that are empty."""
        places = {name: _with_weights(path, name) if weights else path / name for name, path in self._lowered.items()}
        known = {name: places[name] for name in names if places[name].is_dir()}
        others, missing = super().directories([name for name in names if name not in known], weights=weights)
        return {**known, **others}, missing
