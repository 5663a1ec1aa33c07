"""Loads `.bzl` files without Bazel.

Starlark's syntax is a subset of Python's, so Python runs the files. Functions of Bazel that a file calls while it is
loaded are replaced by functions that only record their arguments. Implementations of rules are never run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass
class Call:
    """A call of a function of Bazel, such as `rule` or `attr.label`."""

    function: str
    arguments: dict[str, Any]

    @property
    def doc(self) -> str:
        """The value of the argument `doc`."""
        return str(self.arguments.get("doc") or "")


@dataclass
class Module:
    """A loaded `.bzl` file.

    Attributes:
        doc: Its docstring.
        names: Its global values by name, without the values that it loads from other files.
    """

    doc: str
    names: dict[str, Any]


_RECORDED = ("aspect", "module_extension", "provider", "repository_rule", "rule", "tag_class", "transition")
_ATTRIBUTES = ("bool", "int", "label", "label_keyed_string_dict", "label_list", "output", "output_list", "string")
_ATTRIBUTES_OF_STRINGS = ("string_dict", "string_list", "string_list_dict", "int_list")


def _record(function: str) -> Callable[..., Call]:
    def call(*positional: Any, **arguments: Any) -> Call:
        return Call(function, {**arguments, **{str(place): value for place, value in enumerate(positional)}})

    return call


def _label(text: str) -> str:
    return text


def _bazel() -> dict[str, Any]:
    """Returns the global names of Bazel that are used while a file is loaded."""
    attributes = {name: _record(name) for name in _ATTRIBUTES + _ATTRIBUTES_OF_STRINGS}
    return {
        **{name: _record(name) for name in _RECORDED},
        "Label": _label,
        "attr": SimpleNamespace(**attributes),
        "config": SimpleNamespace(bool=_record("bool"), string=_record("string")),
        "config_common": SimpleNamespace(toolchain_type=None),
        "struct": SimpleNamespace,
    }


# Names that files of other repositories define: Bazel's own, and host_repository's for a machine without any facts.
_FILES = (
    "@rules_executorch_host//:cc.bzl",
    "@rules_executorch_host//:host.bzl",
    "@rules_executorch_toolchains//:toolchains.bzl",
    "@bazel_tools//tools/build_defs/repo:utils.bzl",
)
_GENERATED: dict[str, Any] = {
    "CC_COMMON": None,
    "CC_INFO": None,
    "CC_LIBRARY": _record("cc_library"),
    "CC_TOOLCHAIN": None,
    "EXEC_COMPATIBLE_WITH": [],
    "EXEC_GROUP": _record("exec_group"),
    "HOST_PLATFORM": None,
    "PACKAGES": [],
    "PYTHON": "",
    "PY_INFOS": [],
    "TOOLCHAINS": [],
    "read_netrc": None,
    "use_netrc": None,
}


class Loader:
    """Loads the files of a repository, each one once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loaded: dict[Path, Module] = {}

    def load(self, path: Path) -> Module:
        """Returns a file's module.

        Raises:
            NameError: The file calls a function of Bazel that this module does not know.
        """
        if path not in self.loaded:
            names = _bazel()
            provided = set(names)

            def load(label: str, *same: str, **renamed: str) -> None:
                loaded = _GENERATED if label in _FILES else self.load(self._path(label, path)).names
                for ours, theirs in {**{name: name for name in same}, **renamed}.items():
                    names[ours] = loaded[theirs]
                    provided.add(ours)

            names["load"] = load
            provided |= {"load", "__builtins__", "__doc__"}
            exec(compile(path.read_text("utf-8"), str(path), "exec"), names)
            own = {name: value for name, value in names.items() if name not in provided}
            self.loaded[path] = Module(str(names.get("__doc__") or ""), own)
        return self.loaded[path]

    def _path(self, label: str, where: Path) -> Path:
        """Returns the file that a label in the file `where` refers to."""
        package, _, name = label.partition(":")
        return (self.root / package.removeprefix("//") if package else where.parent) / name
