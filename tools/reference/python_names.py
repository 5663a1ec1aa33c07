"""Makes the pages of the Python names that other packages may use from their docstrings. Imports no module.

A module has a page. Names that do not fit there have pages of their own.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.reference.markdown import (
    LONGEST_PAGE,
    docstring,
    fence,
    first_sentence,
    length,
    link,
    sections,
    signature,
    table,
)
from tools.reference.markdown import page as markdown_page

PUBLIC = {
    "etbuild": ("load", "open_program", "Model", "Built", "Program"),
    "etbuild.backends": (
        "Backend",
        "Context",
        "QuantizerContext",
        "EdgeRequirements",
        "StoredWeights",
        "Need",
        "Options",
        "Partitioners",
        "OptionError",
    ),
    "etbuild.backends.needs": ("package", "sdk", "python"),
    "etbuild.errors": ("Problem", "DocumentPath", "EtbuildError", "InputError", "BuildError"),
}
"""By module, the names that notebooks, services, and packages with their own backend may import. Others may change."""

_SOURCE = "the docstrings of toolchain/etbuild"
_LINE = 120  # the maximum length of a line of code, in characters
_ABOVE = 8  # the lines of a page above its content
_PACKAGES = "toolchain"  # the folder with the package `etbuild`
_Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


def pages(root: Path) -> dict[str, str]:
    """Returns the pages and their index.

    Raises:
        LookupError: A module has no such name.
    """
    written: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str]]] = {}
    for module, names in PUBLIC.items():
        found = {name: _find(root / _PACKAGES, module, name) for name in names}
        apart = _apart(module, found)
        for name in apart:
            written |= _of_its_own(module, name, found[name])
        together = [name for name in names if name not in apart]
        content = [block for name in together for block in (f"## {name}", *found[name].blocks(module, name))]
        imported = fence("python", _import(module, together))
        page = f"python/{module.replace('.', '-')}.md"
        written[page] = markdown_page(f"`{module}`", _SOURCE, [imported, *content])
        links = {
            name: link(name, "", _own_page(module, name)) if name in apart else link(name, None, page) for name in names
        }
        rows[module] = [(links[name], first_sentence(found[name].doc)) for name in names]
    return {"python.md": markdown_page("Python interface", _SOURCE, _index(rows)), **written}


def _apart(module: str, found: dict[str, _Found]) -> list[str]:
    """Returns the names that get pages of their own: the longest ones, so that the others fit on one page."""
    lines = {name: length(each.blocks(module, name)) + 2 for name, each in found.items()}
    apart: list[str] = []
    while sum(lines.values()) > LONGEST_PAGE - _ABOVE:
        apart.append(max(lines, key=lambda name: lines[name]))
        del lines[apart[-1]]
    return apart


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _own_page(module: str, name: str) -> str:
    return f"python/{module.replace('.', '-')}-{name}.md"


def _of_its_own(module: str, name: str, found: _Found) -> dict[str, str]:
    """Returns the page of a name, and a second one for the methods of a class that do not fit there."""
    page = _own_page(module, name)
    imported = fence("python", _import(module, [name]))
    whole = list(found.blocks(module, name, "##"))
    if length(whole) <= LONGEST_PAGE - _ABOVE:
        return {page: markdown_page(f"`{module}.{name}`", _SOURCE, [imported, *whole])}
    first = next(place for place, block in enumerate(whole) if block.startswith("## "))
    second = page.replace(".md", "-methods.md")
    rows = [
        (link(block.removeprefix("## "), None, second), first_sentence(whole[place + 2]))
        for place, block in enumerate(whole)
        if block.startswith("## ")
    ]
    return {
        page: markdown_page(
            f"`{module}.{name}`", _SOURCE, [imported, *whole[:first], table(("method", "what it does"), rows)]
        ),
        second: markdown_page(f"Methods of `{module}.{name}`", _SOURCE, whole[first:]),
    }


def _index(rows: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    yield (
        "What notebooks and services import from `etbuild`, and what a package that "
        "[adds a backend](../custom-backend.md) imports from its modules. Other modules and names are "
        "internal: they may change in any release. None of these modules imports torch."
    )
    for module, of_module in rows.items():
        yield f"## {module}"
        yield table(("name", "what it is"), of_module)


@dataclass
class _Found:
    """A definition, the statement after it, and the source that contains both."""

    node: _Definition
    following: ast.stmt | None
    source: str

    @property
    def doc(self) -> str:
        if isinstance(self.node, ast.ClassDef | ast.FunctionDef):
            return ast.get_docstring(self.node) or ""
        return _string(self.following) or ""

    def blocks(self, module: str, name: str, level: str = "###") -> Iterator[str]:
        """Returns the blocks of a page about a name. Methods are under headings of a level."""
        if isinstance(self.node, ast.ClassDef):
            yield from self._class(self.node, module, level)
        elif isinstance(self.node, ast.FunctionDef):
            yield from self._function(self.node, name, f"{module}:{name}")
        else:
            yield signature("python", self._text(self.node), f"{module}:{name}")
            yield self.doc

    def _text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ""

    def _function(self, node: ast.FunctionDef, name: str, of: str) -> Iterator[str]:
        returns = self._text(node.returns) if node.returns else ""
        if any("property" in self._text(decorator) for decorator in node.decorator_list):
            yield signature("python", f"{name}: {returns}", of)
        else:
            arguments = [text for text in self._arguments(node.args) if text not in ("self", "cls")]
            yield signature("python", f"{name}({', '.join(arguments)}){f' -> {returns}' if returns else ''}", of)
        yield docstring(ast.get_docstring(node) or "", "python")

    def _arguments(self, arguments: ast.arguments) -> Iterator[str]:
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        for argument, default in zip(positional, [*defaults, *arguments.defaults], strict=True):
            yield self._argument(argument, default)
        if arguments.vararg:
            yield f"*{self._text(arguments.vararg)}"
        elif arguments.kwonlyargs:
            yield "*"
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            yield self._argument(argument, default)
        if arguments.kwarg:
            yield f"**{self._text(arguments.kwarg)}"

    def _argument(self, argument: ast.arg, default: ast.expr | None) -> str:
        return self._text(argument) + (f" = {self._text(default)}" if default else "")

    def _class(self, node: ast.ClassDef, module: str, level: str) -> Iterator[str]:
        bases = ", ".join(self._text(base) for base in node.bases)
        decorators = "".join(f"@{self._text(decorator)}\n" for decorator in node.decorator_list)
        yield signature(
            "python", f"{decorators}class {node.name}{f'({bases})' if bases else ''}", f"{module}:{node.name}"
        )
        text = ast.get_docstring(node) or ""
        yield docstring(text, "python", skip=("Attributes",))
        yield self._fields(node, sections(text).get("Attributes", {}))
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and (method.name == "__init__" or not method.name.startswith("_")):
                shown = node.name if method.name == "__init__" else f"{node.name}.{method.name}"
                yield f"{level} {shown}"
                yield from self._function(method, shown, f"{module}:{node.name}.{method.name}")

    def _fields(self, node: ast.ClassDef, said: dict[str, str]) -> str:
        """Returns a table of the fields of a class, with and without type annotations."""
        rows = []
        for field, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                name, kind = self._text(field.target), f"`{self._text(field.annotation)}`"
            elif isinstance(field, ast.Assign):
                name, kind = self._text(field.targets[0]), ""
            else:
                continue
            if not name.startswith("_"):
                default = f"`{self._text(field.value)}`" if field.value else "required"
                rows.append((f"`{name}`", kind, default, said.get(name) or _string(following) or ""))
        return table(("field", "type", "default", "description"), rows) if rows else ""


def _find(packages: Path, module: str, name: str) -> _Found:
    """Finds the definition of a name in the module, or in the module of the driver that it is imported from."""
    path = packages.joinpath(*module.split("."))
    stub = path / "__init__.pyi"  # of names that are imported when they are used
    file = stub if stub.exists() else path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = file.read_text("utf-8")
    body = ast.parse(source).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if (
            isinstance(statement, ast.ImportFrom)
            and statement.module
            and statement.module.startswith(("etbuild", "etkit"))
        ):
            original = {alias.asname or alias.name: alias.name for alias in statement.names}.get(name)
            if original is not None:
                return _find(packages, statement.module, original)
        if isinstance(statement, _Definition) and name in _names(statement):
            return _Found(statement, following, source)
    raise LookupError(f"{module} has no name {name}: change PUBLIC in {Path(__file__).name}")


def _names(statement: _Definition) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _string(statement: ast.stmt | None) -> str | None:
    """Returns the text of a statement that is only a string. It documents the assignment before it."""
    constant = statement.value if isinstance(statement, ast.Expr) else None
    text = constant.value if isinstance(constant, ast.Constant) else None
    return inspect.cleandoc(text) if isinstance(text, str) else None
