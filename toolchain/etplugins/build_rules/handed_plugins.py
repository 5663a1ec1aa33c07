"""Planning hands the plug-ins that a program uses on to the later actions of its target.

Before planning, a build rule does not know which ones a program uses. So an action that plans gets all those that its
target may use, and copies some. The later actions have the copies as inputs, and no others: an edit of another plug-in
changes none of their inputs, on no machine and in no cache.

Planning lists the others as unused inputs: nothing of them was read. What plug-ins provide stands beside the driver of
the action, which is always an input. So an edit that would change which plug-ins it chooses plans again.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from etbuild import plugins
from etbuild.manifest import plugin_sections
from etbuild.manifest.sections import Manifest
from etbuild.plan.plan import Plan
from etbuild.publishing import artifacts


def write(plan: Plan, manifest: Manifest, directories: Mapping[str, Path], unused: Path | None) -> None:
    """Copies the plug-ins for each step, and lists those that cannot change a result.

    Args:
        plan: The plan of the program.
        manifest: Its manifest.
        directories: For a step, the directory of the plug-ins that it needs. Those for `lower` are for all later steps.
        unused: The file for the list, in Bazel's form; None: there is none.
    """
    needed, handed = plugin_sections.needed(manifest), set[str]()
    for step, directory in directories.items():
        with artifacts.whole_directory(directory) as staged:
            handed.update(copy(plan.plugins_of_target(needed, step), staged))
    if unused is not None:
        places = [place.relative_to(Path.cwd()) for place in not_read() if place.name not in handed]
        artifacts.replace(unused, "".join(f"{place}\n" for place in places).encode())


def copy(names: Collection[str], directory: Path) -> list[str]:
    """Copies those of the added plug-ins that have these names, for `plugins.handed` in a later action.

    Returns:
        Their names.
    """
    added = {place.name: place for _, place in sorted(plugins.added().items())}
    chosen = {name: place for name, place in added.items() if plugins.ANY in names or name in names}
    (directory / plugins.LIST).write_text("".join(f"{name}\n" for name in chosen), "utf-8")
    for name, place in chosen.items():
        for file in (each for each in place.rglob("*") if each.is_file() and each.parent.name != "__pycache__"):
            target = directory / name / file.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return [*chosen]


def not_read() -> list[Path]:
    """The added plug-ins of which nothing was read: no module was imported, and the driver knows what they provide."""
    added = plugins.added()
    known = {package for package in added if plugins.ROOT.joinpath(*package.split("."), plugins.FILE).exists()}
    return [added[package] for package in sorted(known - sys.modules.keys())]
