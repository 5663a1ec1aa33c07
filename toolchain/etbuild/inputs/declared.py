"""The declared inputs of a build, sources by import path and data by name, and the toolchain: what makes up the key."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etbuild import __version__, backends
from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.files import regular_files
from etbuild.inputs import distributions as installed
from etbuild.plan import plan as plans

KEY_SCHEMA = "executorch-key/v2"


@dataclass
class Inputs:
    """What a build may read.

    Attributes:
        sources: Files by import path, `models/backbone.py` for `models.backbone`.
        data: Files by name.
        roots: Directories that are searched for what is not named there: on the command line the manifest's directory
            and each `--root`; in a build system none, since it declares every file.
    """

    sources: dict[str, Path] = field(default_factory=dict)
    data: dict[str, Path] = field(default_factory=dict)
    roots: list[Path] = field(default_factory=list)

    def source(self, name: str) -> Path | None:
        """The source with this import path."""
        return self.sources.get(name) or self._search(name)

    def find(self, name: str) -> Path | None:
        """The data file with this name, if it is declared."""
        return self.data.get(name) or self._search(name)

    def find_data(self, name: str, path: DocumentPath) -> Path:
        """The data file with this name, which the manifest gives at `path`.

        Raises:
            InputError: It is not declared, or there is no such file.
        """
        found = self.find(name)
        if found is not None and not _is_file(found):
            there = os.path.lexists(found)
            message = f"`{name}` is declared as {found}, which is {'not a file' if there else 'not there'}"
            raise InputError([Problem(message, path, "check the path after `=` of `--data`")])
        if found is None:
            where = f"looked in: {', '.join(map(str, self.roots))}"
            rule = "list it under `data` of the target; so too the weights of a model that is quantized"
            hint = did_you_mean(name, self.data) or (where if self.roots else rule)
            if any(_is_file(root / name) for root in self.roots):
                hint = f"it is a link that leaves its directory: declare it with `--data {name}=FILE`"
            if "=" in name:
                hint = "`--data NAME=FILE` cannot say this name: rename the file, or search its directory with `--root`"
            raise InputError([Problem(f"`{name}` is not a declared input", path, hint)])
        return found

    def only(self, names: Mapping[str, DocumentPath]) -> Inputs:
        """The same sources, and of the data only these: what one step reads, since no more is in its key.

        Raises:
            InputError: One is not declared.
        """
        return Inputs(self.sources, {name: self.find_data(name, path) for name, path in names.items()})

    def _search(self, name: str) -> Path | None:
        for root in self.roots:
            candidate = root / name
            if _is_file(candidate) and candidate.resolve().is_relative_to(root.resolve()):
                return candidate
        return None


@dataclass
class Used:
    """What a plan uses of its sources.

    Attributes:
        sources: Those that its callables reach through import statements, by import path, sorted.
        packages: Top-level names that they import from elsewhere, Python's own left out.
        contents: Of the sources, by import path. Each file is read once: what is digested is what runs.
    """

    sources: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    contents: dict[str, bytes] = field(default_factory=dict)


def read_sources(sources: Mapping[str, Path]) -> Used:
    """All of some sources, whatever imports them.

    Raises:
        InputError: One cannot be read, or is not Python.
    """
    used = Used(dict(sources), set(), {name: _read(name, path) for name, path in sources.items()})
    return reached_sources(used, [_module_of(name) for name in sorted(sources)])


def _module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def used_sources(inputs: Inputs, export_plan: plans.Plan) -> Used:
    """Follows the import statements of an export plan's callables.

    Raises:
        InputError: The module of a callable is not among the sources, or a source is not Python, or hides a module of
            Python's own.
    """
    used = Used(packages={"transformers"} if export_plan["model"]["huggingface"] else set())
    problems = []
    roots = [(name.partition(":")[0], ("model", "factory")) for name in plans.callables(export_plan)]
    roots += [(name, ("model", "modules")) for name in export_plan["model"]["modules"]]
    for module, path in roots:
        if not _follow(inputs, module, used):
            message = f"the module `{module}` is not among the declared sources"
            problems.append(Problem(message, path, _nearest(inputs, module)))
    for index, module in enumerate(export_plan["custom_ops"]["modules"]):
        if _follow(inputs, module, used):
            continue
        top = module.partition(".")[0]
        if _locate(inputs, [top])[1] is None and importlib.util.find_spec(top) is not None:
            used.packages.add(top)
        else:
            message = f"the module `{module}` is neither among the declared sources nor installed"
            problems.append(Problem(message, ("custom_ops", "modules", index), _nearest(inputs, module)))
    for name in used.sources:
        top = name.removesuffix(".py").split("/")[0]
        if top in sys.stdlib_module_names:
            problems.append(
                Problem(
                    f"the source `{name}` hides Python's own module `{top}`",
                    ("model", "factory"),
                    "rename the file",
                )
            )
    if problems:
        raise InputError(problems)
    used.sources = dict(sorted(used.sources.items()))
    return used


def _nearest(inputs: Inputs, module: str) -> str | None:
    """What may have been meant by a module that there is not, or where it was looked for."""
    known = [name[:-3].replace("/", ".") for name in inputs.sources if name.endswith(".py")]
    where = ", ".join(str(root / f"{module.replace('.', '/')}.py") for root in inputs.roots)
    return did_you_mean(module, known) or (f"there is no {where}" if where else None)


def reached_sources(used: Used, modules: Iterable[str]) -> Used:
    """The part that the import statements of some modules reach, those modules among it. Reads no file again."""
    reached = Used(contents=dict(used.contents))
    for module in modules:
        _follow(Inputs(used.sources), module, reached)
    reached.contents = {name: reached.contents[name] for name in reached.sources}
    return reached


def _follow(inputs: Inputs, module: str, used: Used) -> bool:
    """Adds a module, the packages it lies in and what it imports; False where it is not a declared source."""
    parts = module.split(".")
    name, path = _locate(inputs, parts)
    if path is None:
        return False
    if name in used.sources:
        return True
    used.sources[name] = path
    content = used.contents[name] = used.contents[name] if name in used.contents else _read(name, path)
    for length in range(1, len(parts)):
        if inputs.source("/".join([*parts[:length], "__init__.py"])) is not None:
            _follow(inputs, ".".join(parts[:length]), used)
    package = parts if name.endswith("/__init__.py") else parts[:-1]
    for imported in _imports(content, name, package):
        # `from a.b import c` may name a module a.b.c or a value in a.b, and imports a and a.b on the way.
        pieces = imported.split(".")
        for length in range(len(pieces), 0, -1):
            if _follow(inputs, ".".join(pieces[:length]), used):
                break
        else:
            if pieces[0] not in sys.stdlib_module_names:
                used.packages.add(pieces[0])
    return True


def _locate(inputs: Inputs, parts: list[str]) -> tuple[str, Path | None]:
    for name in ("/".join([*parts, "__init__.py"]), "/".join(parts) + ".py"):
        path = inputs.source(name)
        if path is not None:
            return name, path
    return "", None


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where it may not look


def _read(name: str, path: Path) -> bytes:
    """The content of a source.

    Raises:
        InputError: It cannot be read.
    """
    try:
        if not _is_file(path):
            raise OSError(0, "it is not a file" if os.path.lexists(path) else "there is no such file")
        return path.read_bytes()
    except OSError as error:
        message = f"cannot read the source `{name}` from {path}: {error.strerror}"
        raise InputError([Problem(message, ("model", "factory"))]) from None


def _parse(content: bytes, name: str) -> ast.Module:
    """The syntax tree of a source.

    Raises:
        InputError: It is not Python.
    """
    hint = None
    try:
        return ast.parse(content)
    except SyntaxError as error:
        why = f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        why = str(error)
    except (RecursionError, MemoryError):  # so the parser says that its stack is full
        why, hint = "an expression or a chain of `elif` in it is too long for Python's parser", "split it"
    raise InputError([Problem(f"the source `{name}` is not valid Python: {why}", ("model", "factory"), hint)])


def _imports(content: bytes, name: str, package: list[str]) -> Iterator[str]:
    """What a source imports: modules, and what may be modules, by their whole names."""
    for node in ast.walk(_parse(content, name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = _absolute(node.module or "", node.level, package)
            if stem:
                yield from (f"{stem}.{alias.name}" if alias.name != "*" else stem for alias in node.names)
            else:
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and (called := _imported_by_call(node)):
            absolute = called.lstrip(".")
            yield _absolute(absolute, len(called) - len(absolute), package)


def _absolute(name: str, level: int, package: list[str]) -> str:
    """The whole name of what has `level` dots in front of it."""
    base = package[: len(package) - level + 1] if level else []
    return ".".join([*base, *([name] if name else [])])


def _imported_by_call(call: ast.Call) -> str | None:
    """The name that `importlib.import_module("NAME")` or `__import__("NAME")` spells out."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    first = call.args[0] if call.args else None
    if function not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
        return None
    return first.value if isinstance(first.value, str) and first.value.strip(".") else None


def describe_inputs(plan: plans.Plan, inputs: Inputs, used: Used) -> dict[str, Any]:
    """`describe` of a whole plan, with the files that it uses.

    Raises:
        InputError: As the functions that it calls.
    """
    return describe(plan, describe_files(inputs, used, data_in_key(inputs, plan)))


def data_in_key(inputs: Inputs, plan: plans.Plan) -> dict[str, DocumentPath]:
    """The data that a plan names, and what is declared besides."""
    return with_declared(inputs, plans.data_names(plan))


def with_declared(inputs: Inputs, names: Mapping[str, DocumentPath]) -> dict[str, DocumentPath]:
    """These data, and all others that are declared one by one: a model may open such a file by itself."""
    return {**dict.fromkeys(inputs.data, ("model",)), **names}


def describe(plan: plans.Plan, read: dict[str, Any]) -> dict[str, Any]:
    """All that a build depends on: the plan, digests of the sources and data that it uses, and the toolchain.

    Args:
        plan: The plan.
        read: What `describe_files` found.

    Raises:
        InputError: A package cannot be told from others of its name.
    """
    return {
        "schema": KEY_SCHEMA,
        "plan": plan,
        "sources": read["sources"],
        "data": read["data"],
        "toolchain": toolchain(read["packages"], backends.distributions(plans.used_backends(plan))),
    }


def describe_files(inputs: Inputs, used: Used, names: Mapping[str, DocumentPath]) -> dict[str, Any]:
    """Digests of files, as JSON data: `sources` by import path, `data` by name, and the `packages` that are imported.

    Args:
        inputs: What may be read.
        used: The sources.
        names: The data, each with the place in the manifest that names it.

    Raises:
        InputError: Something that the plan names is not declared.
    """
    return {
        "sources": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(used.contents.items())},
        "data": {name: _digest_of(name, inputs.find_data(name, path), path) for name, path in sorted(names.items())},
        "packages": sorted(used.packages),
    }


def check_unchanged(read: dict[str, Any], inputs: Inputs, used: Used, names: Mapping[str, DocumentPath]) -> None:
    """What was digested has to be what was read: else another content would be kept under the key.

    Args:
        read: What `describe_files` found when the build began.
        inputs: What may be read.
        used: The sources.
        names: The data.

    Raises:
        BuildError: A source or a data file is no longer what it was.
    """
    now = {
        "sources": {name: _digest_now(path) for name, path in used.sources.items()},
        "data": {name: _digest_now(inputs.find(name)) for name in names},
    }
    for kind, digests in now.items():
        for name, digest in digests.items():
            if digest != read[kind][name]:
                message = f"`{name}` was changed while the program was built"
                raise BuildError([Problem(message, hint="build again")])


def _digest_now(path: Path | None) -> str | None:
    """The digest of a file, or None where it is gone."""
    try:
        return None if path is None else file_digest(path)
    except OSError:
        return None


def _digest_of(name: str, path: Path, place: DocumentPath) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise InputError([Problem(f"cannot read `{name}` from {path}: {error.strerror}", place)]) from None


def file_digest(path: Path) -> str:
    """sha256 of a regular file, in hex.

    Raises:
        OSError: It cannot be read, or is something else, such as a device that never ends.
    """
    with regular_files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else _digest_3_10(file)


def _digest_3_10(file: Any) -> str:
    state = hashlib.sha256()
    while block := file.read(1 << 20):
        state.update(block)
    return state.hexdigest()


def toolchain(packages: Iterable[str] = (), distributions: Iterable[str] = ()) -> dict[str, Any]:
    """What lowers: the driver by its files, each distribution in use by version and content, and Python's version.

    In use is what the driver requires, what owns the packages that the sources import, and distributions that are
    named here because backends need them; and all that these require. `startup` is code that Python runs when it
    starts, where there is any. The patch release of Python is left out: it does not reach the bytes, and executors of
    one build may differ in it.

    Raises:
        InputError: A package cannot be told from others of its name.
    """
    return {
        "driver": {"version": __version__, "sha256": _driver_digest()},
        "python": f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}",
        "distributions": {
            name: {"version": version, "sha256": sha256}
            for name in sorted({*distributions_of(packages), *_requirements(*sorted(distributions))})
            for version, sha256 in [installed.facts(name)]
        },
        **({"startup": startup} if (startup := installed.startup()) else {}),
    }


def check_installed(packages: Iterable[str] = ()) -> None:
    """Whether what lowers, and the packages that sources import, are installed as the key says.

    Raises:
        InputError: A file was changed after its installation.
    """
    for name in sorted(distributions_of(packages)):
        installed.check_unedited(name)


@functools.cache
def _driver_digest() -> str:
    root = Path(__file__).parents[1]
    files = [path for pattern in ("**/*.py", "schemas/*.json") for path in root.glob(pattern)]
    names = {path.relative_to(root).as_posix(): path for path in files}
    return plans.digest({name: file_digest(path) for name, path in names.items()})


def distributions_of(packages: Iterable[str]) -> set[str]:
    """The distributions that the key holds for any build whose sources import these packages.

    Raises:
        InputError: A package cannot be told from others of its name.
    """
    found = set(_requirements("executorch", "torch", "jsonschema", "pyyaml", "safetensors"))
    others = [name for name in sorted(packages) if name not in found]
    owners = importlib.metadata.packages_distributions() if others else {}
    for name in others:
        if name in owners:
            found.update(_requirements(*owners[name]))
        elif importlib.util.find_spec(name) is not None:
            raise InputError(
                [
                    Problem(
                        f"the sources import `{name}`, which is installed without a version that the key could hold",
                        ("model", "factory"),
                        "declare it as a source, or install it as a distribution",
                    )
                ]
            )
    return found


@functools.cache
def _requirements(*roots: str) -> tuple[str, ...]:
    """The named distributions and all that they require, as far as they are installed."""
    found = []
    waiting, seen = list(roots), {"etbuild"}  # which is there by its files
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement of an extra or of another platform
        found.append(name)
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement and "extra==" not in requirement:
                waiting.append(re.match(r"[A-Za-z0-9._-]+", requirement).group())  # type: ignore[union-attr]
    return tuple(found)
