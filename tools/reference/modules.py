"""Makes the page of the driver's packages and modules from their docstrings and from the order that lint checks.

ARCHITECTURE.md shows a part of it: the packages in order, with their modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.reference.markdown import page as markdown_page
from tools.reference.markdown import table

_LAYERS = re.compile(r"^layers = \[\n(.*?)^\]", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- /packages -->)", re.DOTALL)


def page(root: Path) -> str:
    """Returns the page."""
    return markdown_page("Modules of the driver", "the docstrings of toolchain/etbuild", _blocks(root))


def with_packages(architecture: str, root: Path) -> str:
    """Returns the text of ARCHITECTURE.md with an updated table of packages."""
    rows = []
    for number, layer in enumerate(_layers(root), 1):
        for name in reversed(layer):
            modules = ", ".join(f"`{module}`" for module in _modules(root, name))
            rows.append((str(number), f"`{name}`", _summary(_file(root, name)), modules))
    return _TABLE.sub(lambda _: f"{table(('layer', 'package', 'what it does', 'modules'), rows)}\n", architecture)


def _blocks(root: Path) -> Iterator[str]:
    yield (
        "The packages stand in the order in which a build needs them. A package imports only packages of lower layers; "
        "`make lint` checks that. The names are internal, except those of the [Python interface](python.md)."
    )
    for layer in _layers(root):
        for name in reversed(layer):
            yield f"## {name}"
            yield _summary(_file(root, name))
            modules = _modules(root, name)
            if modules:
                directory = _file(root, name).parent
                rows = [(f"`{module}`", _summary(_module_file(directory, module))) for module in modules]
                yield table(("module", "what it does"), rows)


def _layers(root: Path) -> list[list[str]]:
    """Returns the packages of each layer in pyproject.toml, from the lowest layer up."""
    found = _LAYERS.search((root / "pyproject.toml").read_text("utf-8"))
    assert found is not None, "pyproject.toml has no layers"
    layers: list[str] = ast.literal_eval(f"[{found[1]}]")
    return [layer.split(" | ") for layer in reversed(layers)]


def _file(root: Path, name: str) -> Path:
    return _module_file(root / "toolchain/etbuild", name)


def _module_file(directory: Path, name: str) -> Path:
    package = directory / name / "__init__.py"
    return package if package.exists() else directory / f"{name}.py"


def _modules(root: Path, name: str) -> list[str]:
    directory = root / "toolchain/etbuild" / name
    if not directory.is_dir():
        return []
    files = {path.stem for path in directory.glob("*.py")} - {"__init__"}
    return sorted(files | {path.parent.name for path in directory.glob("*/__init__.py")})


def _summary(file: Path) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split("\n\n")[0].split()))[0]
