"""Finds the plug-ins beside this package, by what they provide.

A plug-in is a directory with a file `plugin.json`. It provides objects, each in a group and under a name: the backend
`qualcomm`, the verb `push`. Code that needs an object names its group, and only then the plug-in is imported. So this
package imports no plug-in, and a key holds only the plug-ins that its program uses.

The form is that of entry points, in files of our own because the driver also runs where nothing is installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean

ROOT = Path(__file__).parents[1]
PLACES = ("etplugins", "etkit")
"""The packages whose directories are plug-ins: what builds need, and what people use around builds."""
FILE = "plugin.json"
LIST = "plugins.txt"
"""The file with the names of the plug-ins that an action hands on to later ones."""
ANY = "*"
"""Stands for all plug-ins, where a target names those that it needs."""
STEPS_OF_GROUPS = {
    **dict.fromkeys(("manifest_keys", "manifest_section", "plan_output", "step_plan"), "plan"),
    "report_part": "report",
}
"""The groups of steps without torch. A plug-in that provides nothing else is in the drivers of these steps."""
AROUND_STEPS = frozenset(("guard", "server"))
"""The groups of what surrounds all steps."""
_given: dict[str, Path] = {}
"""The directories of plug-ins that are not beside this package, by the packages of the plug-ins."""


@dataclass(frozen=True)
class Plugin:
    """A plug-in.

    Attributes:
        package: Its Python package, such as `etplugins.qualcomm`.
        description: What it is, in one sentence.
        provides: For each group, what it provides: names, each with its `module:object`, or with its module.
        uses: The packages of the plug-ins that it imports.
        imports: Packages that are in a key if the program reads a tensor file of this plug-in, such as `gguf`.
        help: What the help of the command line lists: for each section, verbs, each with an example.
        always: The steps that run it for each program.
    """

    package: str
    description: str
    provides: Mapping[str, Mapping[str, str]]
    uses: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    help: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    always: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.package.rpartition(".")[2]

    @property
    def directory(self) -> Path:
        """Its directory."""
        return _given.get(self.package) or ROOT.joinpath(*self.package.split("."))

    @property
    def is_named(self) -> bool:
        """Whether the targets of build rules name it, since only some programs use it. Drivers have all others."""
        return self.package.startswith(f"{PLACES[0]}.") and self.package not in of_all_programs()

    @property
    def is_here(self) -> bool:
        """Whether its code is there. The action that plans has the files of all plug-ins that say what they provide,
        and the code of those that its target names."""
        return (self.directory / "__init__.py").exists()

    def not_named(self) -> Problem:
        """The problem of a program that needs this plug-in, if only its code is missing."""
        message = f"the program needs the plug-in `{self.name}`, and its target does not name it"
        return Problem(message, hint=f'add "{self.name}" to `plugins` in the BUILD file (`etbuild targets` does it)')


@functools.cache
def plugins() -> dict[str, Plugin]:
    """All plug-ins by their packages, sorted."""
    files = {f"{place}.{file.parent.name}": file for place in PLACES for file in (ROOT / place).glob(f"*/{FILE}")}
    files = {package: directory / FILE for package, directory in _given.items()} | files
    return {package: _read(files[package], package) for package in sorted(files)}


_FORM = {"description": str, "provides": dict, "uses": list, "imports": list, "help": dict, "always": list}


def _read(file: Path, package: str) -> Plugin:
    import json  # `etbuild --version` needs none

    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError.of(f"{file}: cannot read the file of a plug-in: {error}") from None
    if not isinstance(content, dict) or not content.keys() >= {"description", "provides"}:
        raise InputError.of(f"{file}: expected an object with `description` and `provides`")
    for key, value in content.items():
        if key not in _FORM:
            raise InputError.of(f"{file}: unknown key `{key}`", did_you_mean(key, _FORM))
        if not isinstance(value, _FORM[key]):
            raise InputError.of(f"{file}: `{key}` is no {_FORM[key].__name__}")
    used, imported, always = (tuple(content.get(key, ())) for key in ("uses", "imports", "always"))
    return Plugin(package, content["description"], content["provides"], used, imported, content.get("help", {}), always)


def add(directories: Iterable[Path]) -> None:
    """Finds plug-ins in these directories too: an action has each that its target names in a directory of its own."""
    _given.update({f"{PLACES[0]}.{directory.name}": directory.absolute() for directory in directories})
    if _Given not in sys.meta_path:
        sys.meta_path.insert(0, _Given)
    for cache in (plugins, group, of_all_programs, driver):
        cache.cache_clear()


def handed(directory: Path) -> list[Path]:
    """The directories of the plug-ins that an earlier action has handed on."""
    return [directory / name for name in (directory / LIST).read_text("utf-8").split()]


def added() -> dict[str, Path]:
    """The directories of the plug-ins that `add` found, by their packages."""
    return dict(_given)


class _Given:
    """Finds the plug-ins that are not beside this package: a process that runs a model may not list their directory."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        """How Python imports a module; None if it is no such plug-in."""
        directory = _given.get(name)
        return None if directory is None else _spec(name, directory)


@functools.cache
def of_all_programs() -> frozenset[str]:
    """The packages of plug-ins that the actions of each program have: those that it always uses, its steps, what is
    around them, what only planning or the report needs, and what these use."""

    def is_one(plugin: Plugin) -> bool:
        groups = plugin.provides.keys()
        of_all = plugin.always or groups & {"step", *AROUND_STEPS}
        return bool(of_all or (groups and groups <= STEPS_OF_GROUPS.keys()))

    return frozenset(each.package for each in with_used(name for name, each in plugins().items() if is_one(each)))


@functools.cache
def driver() -> tuple[str, ...]:
    """The directories of the driver's own modules. Each ends with a separator."""
    return tuple(f"{place}/" for place in (*(ROOT / each for each in ("etbuild", *PLACES)), *_given.values()))


@functools.cache
def group(name: str) -> dict[str, Plugin]:
    """What plug-ins provide in a group: each name with its plug-in."""
    return {provided: plugin for plugin in plugins().values() for provided in plugin.provides.get(name, ())}


def load(of_group: str, name: str, path: DocumentPath | None = None) -> Any:
    """Imports what a plug-in provides.

    Args:
        of_group: The group.
        name: The name in the group.
        path: The place in the manifest that names it, for the error; None if it is unknown.

    Raises:
        InputError: No plug-in here provides it.
    """
    plugin = group(of_group).get(name)
    if plugin is None:
        raise InputError([Problem(f"no plug-in provides the {of_group.replace('_', ' ')} `{name}`", path)])
    if not plugin.is_here:
        raise InputError([replace(plugin.not_named(), path=path)])
    module, _, attribute = plugin.provides[of_group][name].partition(":")
    imported = import_module(module)
    return getattr(imported, attribute) if attribute else imported


def import_module(name: str) -> ModuleType:
    """Imports a module of a plug-in."""
    for place in PLACES:  # a plug-in may import one of another place
        _import_place(place)
    return importlib.import_module(name)


def _import_place(name: str) -> None:
    """Imports the package of a place, if it is there, from beside this one. `sys.path` may lack its directory."""
    if name not in sys.modules and (ROOT / name / "__init__.py").exists():
        spec = _spec(name, ROOT / name)
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def _spec(name: str, directory: Path) -> ModuleSpec:
    """How a package in a directory is imported."""
    file = directory / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(directory)])
    assert spec is not None
    return spec


def with_used(packages: Iterable[str]) -> list[Plugin]:
    """Plug-ins with all that they use, sorted by package."""
    found: dict[str, Plugin] = {}
    waiting = [*packages]
    while waiting:
        if (package := waiting.pop()) not in found:
            found[package] = plugins()[package]
            waiting += found[package].uses
    return [found[package] for package in sorted(found)]
