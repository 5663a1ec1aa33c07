"""Makes the page of the driver's packages and modules from their docstrings and from the order that lint checks.

ARCHITECTURE.md shows a part of it: the packages in order, with their modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tomllib

from tools.reference.markdown import page as markdown_page
from tools.reference.markdown import table

_TABLE = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- /packages -->)", re.DOTALL)


def page(root: Path) -> str:
    """Returns the page."""
    return markdown_page("Modules of the driver", "the docstrings of the driver", _blocks(root))


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
    return _TABLE.sub(lambda _: "{}\n".format("\n\n".join(blocks)), architecture)


def _blocks(root: Path) -> Iterator[str]:
    yield (
        "The packages stand in the order in which a build needs them. A package imports only packages of lower layers, "
        "and `etbuild` imports nothing of `etkit`; `make lint` checks that. The names are internal, except those of "
        "the [Python interface](python.md)."
    )
    for root_package, layers in _layers(root).items():
        for name in (each for layer in layers for each in reversed(layer)):
            directory = root / "toolchain" / root_package
            yield f"## {root_package}.{name}"
            yield _summary(_module_file(directory, name))
            if modules := _modules(directory / name):
                rows = [(f"`{module}`", _summary(_module_file(directory / name, module))) for module in modules]
                yield table(("module", "what it does"), rows)


def _layers(root: Path) -> dict[str, list[list[str]]]:
    """The packages of each layer in pyproject.toml, from the lowest layer up, by the package that contains them."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [layer.split(" | ") for layer in reversed(contract["layers"])]
        for contract in reversed(contracts)
        if contract["type"] == "layers"
    }


def _module_file(directory: Path, name: str) -> Path:
    package = directory / name / "__init__.py"
    return package if package.exists() else directory / f"{name}.py"


def _modules(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    files = {path.stem for path in directory.glob("*.py")} - {"__init__"}
    return sorted(files | {path.parent.name for path in directory.glob("*/__init__.py")})


def _summary(file: Path) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split("\n\n")[0].split()))[0]
