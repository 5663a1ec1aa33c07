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
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from etbuild.errors import InputError, did_you_mean

ROOT = Path(__file__).parents[1]
PLACES = ("etplugins", "etkit")
"""The packages whose directories are plug-ins: what builds need, and what people use around builds."""
FILE = "plugin.json"
DRIVER = tuple(f"{ROOT / package}/" for package in ("etbuild", *PLACES))
"""The directories of the driver's own modules. Each ends with a separator."""


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
    """

    package: str
    description: str
    provides: Mapping[str, Mapping[str, str]]
    uses: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    help: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.package.rpartition(".")[2]

    @property
    def directory(self) -> Path:
        """Its directory."""
        return ROOT.joinpath(*self.package.split("."))


@functools.cache
def plugins() -> dict[str, Plugin]:
    """All plug-ins by their packages, sorted."""
    files = {f"{place}.{file.parent.name}": file for place in PLACES for file in (ROOT / place).glob(f"*/{FILE}")}
    return {package: _read(files[package], package) for package in sorted(files)}


_FORM = {"description": str, "provides": dict, "uses": list, "imports": list, "help": dict}


def _read(file: Path, package: str) -> Plugin:
    import json  # `etbuild --version` needs none

    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise InputError.of(f"{file}: not JSON: {error}") from None
    if not isinstance(content, dict) or not content.keys() >= {"description", "provides"}:
        raise InputError.of(f"{file}: expected an object with `description` and `provides`")
    for key, value in content.items():
        if key not in _FORM:
            raise InputError.of(f"{file}: unknown key `{key}`", did_you_mean(key, _FORM))
        if not isinstance(value, _FORM[key]):
            raise InputError.of(f"{file}: `{key}` is no {_FORM[key].__name__}")
    used, imported = (tuple(content.get(key, ())) for key in ("uses", "imports"))
    return Plugin(package, content["description"], content["provides"], used, imported, content.get("help", {}))


@functools.cache
def group(name: str) -> dict[str, Plugin]:
    """What plug-ins provide in a group: each name with its plug-in."""
    return {provided: plugin for plugin in plugins().values() for provided in plugin.provides.get(name, ())}


def load(of_group: str, name: str) -> Any:
    """Imports what a plug-in provides.

    Raises:
        InputError: No plug-in here provides it.
    """
    plugin = group(of_group).get(name)
    if plugin is None:
        raise InputError.of(f"no plug-in provides the {of_group.replace('_', ' ')} `{name}`")
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
    file = ROOT / name / "__init__.py"
    if name not in sys.modules and file.exists():
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def with_used(packages: Iterable[str]) -> list[Plugin]:
    """Plug-ins with all that they use, sorted by package."""
    found: dict[str, Plugin] = {}
    waiting = [*packages]
    while waiting:
        if (package := waiting.pop()) not in found:
            found[package] = plugins()[package]
            waiting += found[package].uses
    return [found[package] for package in sorted(found)]
