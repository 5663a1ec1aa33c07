"""`etbuild targets`: writes and updates the targets of manifests in BUILD or BUCK files."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser
from etbuild.errors import InputError, printable
from etkit.manifests import each_manifest

if TYPE_CHECKING:
    from etkit.authoring.targets.update import System, Update


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "targets",
        "write and update the BUILD or BUCK targets of manifests",
        "Updates what a target repeats from its manifest: methods, backends, tags and files. Changes nothing else.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path()],
        metavar="PATH",
        help="a manifest, or a directory with manifests (default: the current directory)",
    )
    add_flag(
        parser,
        "--check",
        "write nothing; print a diff, and exit with code 1 if there is one, or if a target disagrees with its "
        "manifest in a way that only you can fix",
    )
    system = parser.add_mutually_exclusive_group()
    add_flag(system, "--bazel", "write BUILD files (default in a workspace of Bazel)")
    add_flag(system, "--buck2", "write BUCK files (default in a project of Buck2)")


def run(options: argparse.Namespace) -> int:
    """Writes the files, or prints how they would change."""
    from etbuild.publishing.artifacts import replace
    from etkit.authoring.targets import update

    workspaces: dict[tuple[System, Path], list[Path]] = {}
    for manifest in each_manifest(options.paths):
        workspaces.setdefault(_workspace(manifest.parent, options), []).append(manifest)
    updates = [each for (system, root), several in workspaces.items() for each in update.update(several, system, root)]
    changed, disagrees = False, any(each.disagrees for each in updates)
    for each in updates:
        for note in each.notes:
            print(f"note: {printable(note)}", file=sys.stderr)
        if each.before == each.after:
            continue
        changed = True
        if options.check:
            print(_diff(each), end="")
        else:
            replace(each.path.resolve(), each.after)
            print(f"{'wrote' if each.before is None else 'updated'} {printable(str(_short(each.path)))}")
    if not (changed or disagrees):
        unread = any(each.unread for each in updates)
        print("nothing to change in what can be read" if unread else "the targets agree with their manifests")
    return 1 if (changed or disagrees) and options.check else 0


def _workspace(directory: Path, options: argparse.Namespace) -> tuple[System, Path]:
    """The build system, and the root of the workspace that a directory is in. Refuses a workspace of both systems."""
    from etkit.authoring.targets.update import BAZEL, BUCK2

    systems = [BAZEL] if options.bazel else [BUCK2] if options.buck2 else [BAZEL, BUCK2]
    found = {system: root for system in systems if (root := system.root(directory)) is not None}
    nearest = max(found.values(), key=lambda root: len(root.parts), default=None)
    if nearest is not None:
        first, *others = [system for system, root in found.items() if root == nearest]
        if others:
            raise InputError.of(f"{nearest}: a workspace of Bazel and a project of Buck2", "use --bazel or --buck2")
        return first, nearest
    what = " or ".join({BAZEL: "a workspace of Bazel", BUCK2: "a project of Buck2"}[system] for system in systems)
    raise InputError.of(
        f"{directory.resolve()}: not in {what}", "its root has a file such as WORKSPACE, MODULE.bazel or .buckconfig"
    )


def _short(path: Path) -> Path:
    here = Path.cwd().resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _diff(changed: Update) -> str:
    name = _short(changed.path).as_posix()
    before = (changed.before or b"").decode().splitlines(keepends=True)
    after = changed.after.decode().splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, "/dev/null" if changed.before is None else f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
