"""Makes ARCHITECTURE.md's table of packages from their docstrings and from the order that lint checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tomllib

from etbuild import plugins
from tools.reference.markdown import first_sentence, table

_TABLE = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- /packages -->)", re.DOTALL)


def with_packages(architecture: str, root: Path) -> str:
    """Returns the text of ARCHITECTURE.md with an updated table of packages."""
    blocks = []
    for name, layers in _layers(root).items():
        directory = root / "toolchain" / name
        rows = [
            (str(number), f"`{package}`", _summary(_module_file(directory, package)))
            for number, layer in enumerate(layers, 1)
            for package in reversed(layer)
        ]
        blocks.append(f"**`{name}`**: {_summary(directory / '__init__.py')}")
        blocks.append(table(("layer", "package", "what it does"), rows))
    blocks.append(f"**Plug-ins**: {_summary(root / 'toolchain' / 'etplugins' / '__init__.py')}")
    blocks.append(table(("plug-in", "provides", "what it is"), list(_plugins())))
    return _TABLE.sub(lambda _: "{}\n".format("\n\n".join(blocks)), architecture)


def _plugins() -> Iterator[tuple[str, str, str]]:
    """A row for each plug-in. Plug-ins that have only backends share a row."""
    found = plugins.plugins().values()
    backends = [plugin for plugin in found if plugin.provides.keys() == {"backend"}]
    for plugin in found:
        if plugin not in backends:
            provided = "; ".join(f"{group}: {', '.join(names)}" for group, names in plugin.provides.items())
            yield f"`{plugin.name}`", provided, plugin.description
    names = ", ".join(f"`{plugin.name}`" for plugin in backends)
    yield names, "backend", "Backends of hardware, each with the schemas of its options."


def _layers(root: Path) -> dict[str, list[list[str]]]:
    """By package, its sub-packages in layers as in pyproject.toml, the lowest layer first."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [layer.split(" | ") for layer in reversed(contract["layers"])]
        for contract in reversed(contracts)
        if contract.get("containers") == ["etbuild"]
    }


def _module_file(directory: Path, name: str) -> Path:
    package = directory / name / "__init__.py"
    return package if package.exists() else directory / f"{name}.py"


def _summary(file: Path) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return first_sentence(text)
