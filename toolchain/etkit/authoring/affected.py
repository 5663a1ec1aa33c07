"""Which programs a change of files can reach."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from pathlib import Path

from etbuild.errors import EtbuildError
from etbuild.inputs import checkpoints
from etbuild.key import import_graph
from etbuild.key.declared import Inputs
from etbuild.plan.plan import Plan
from etkit.authoring.changed_files import Changed
from etplugins.samples.names import matches

_BUILD_FILES = ("BUILD", "BUILD.bazel")
_EVERYWHERE = ("WORKSPACE", "WORKSPACE.bazel", "MODULE.bazel", "MODULE.bazel.lock", ".bazelrc", ".bazelversion")


def reasons(plan: Plan, manifest: Path, declared: Inputs, changed: Changed) -> list[str]:
    """The changed files that a program may be made from, relative to the repository; empty if there are none.

    A deleted source counts if the program imports its package or module. A deleted data file counts if it has the name
    of a data file of the program. If the inputs of the program cannot be found, all files count.

    Args:
        plan: The plan of the program.
        manifest: Its manifest.
        declared: Its inputs.
        changed: The changed files.
    """
    files = changed.absolute()
    try:
        used = import_graph.used_sources(declared, plan.export_plan)
        files_of_names = checkpoints.with_shards(plan.data_names, declared)
        data = {name: declared.find_data(name, where) for name, where in files_of_names.items()}
    except EtbuildError:
        return changed.files
    roots = [root.resolve() for root in declared.roots]
    read = {manifest, *used.sources.values(), *data.values(), *(root / name for root in roots for name in data)}
    imported = {_top(name) for name in used.sources} | used.packages
    deleted = [path for path in files if not os.path.lexists(path)]
    gone = {path for path in deleted if imported & set(_tops(path, roots)) or _was_sample(path, roots, plan)}
    found = (files & {os.path.normpath(place) for path in read for place in _places(path)}) | gone
    return sorted(os.path.relpath(path, changed.root) for path in found)


def _was_sample(path: str, roots: list[Path], plan: Plan) -> bool:
    """Whether a deleted file had the name of a sample."""
    names = [Path(path).relative_to(root).as_posix() for root in roots if Path(path).is_relative_to(root)]
    return any(matches(name, pattern) for name in names for pattern in plan.data_names)


def _tops(path: str, roots: list[Path]) -> Iterator[str]:
    """The names of the top module or package of a source, one for each root that it is below."""
    for root in roots:
        if path.endswith(".py") and Path(path).is_relative_to(root):
            yield _top(Path(path).relative_to(root).as_posix())


def _top(name: str) -> str:
    return name.removesuffix(".py").partition("/")[0]


def _places(path: Path) -> Iterator[Path]:
    """Yields a path with the links of its directory resolved, and with all of its links resolved."""
    yield path.parent.resolve() / path.name
    yield path.resolve()


def bazel_query(changed: Changed, workspace: Path) -> str:
    """A query of Bazel for the programs that a change can reach.

    A changed file of a package is named by its path. For a deleted file or a BUILD file, each target of its package
    counts. For a `.bzl` file, or a file that Bazel reads before packages, each target counts.

    Args:
        changed: The changed files.
        workspace: The directory of the workspace.
    """
    inside = [os.path.relpath(path, workspace) for path in sorted(changed.absolute())]
    inside = [path for path in inside if not path.startswith("..")]
    if any(path in _EVERYWHERE or path.endswith(".bzl") for path in inside):
        return _PROGRAMS.format("//...")
    targets = {_target(path, workspace) for path in inside}
    listed = " ".join(f'"{target}"' for target in sorted(filter(None, targets)))
    return _PROGRAMS.format(f"rdeps(//..., set({listed}))") if listed else _PROGRAMS.format("set()")


_PROGRAMS = 'kind("executorch_program rule", {})'


def _target(path: str, workspace: Path) -> str | None:
    """The target of a file: its label, or all targets of its package. None if it is in no package."""
    for directory in Path(path).parents:
        if any((workspace / directory / name).is_file() for name in _BUILD_FILES):
            package = "" if directory == Path() else directory.as_posix()
            name = Path(path).relative_to(directory).as_posix()
            known = (workspace / path).is_file() and name not in _BUILD_FILES and not set('"\\:') & set(name)
            return f"//{package}:{name}" if known else f"//{package}:all"
    return None
