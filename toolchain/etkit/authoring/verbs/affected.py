"""`etbuild affected`: lists the programs that a change touches."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_roots, add_value
from etbuild.errors import InputError, printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "affected",
        "list the manifests whose programs a change touches",
        "Compares the working tree with the commit where the branch began. Changes of installed packages are not seen.",
    )
    parser.add_argument("manifests", type=Path, nargs="*", metavar="MANIFEST", help="the manifests to choose from")
    add_value(parser, "--since COMMIT", "a commit, branch or tag, such as origin/main", required=True)
    add_flag(
        parser,
        "--bazel",
        "print a query instead, for `bazel query --keep_going`, in the workspace of the current directory",
    )
    add_roots(parser)
    add_flag(parser, "--json", "print JSON, with the files that are the reason")


def run(options: argparse.Namespace) -> int:
    """Prints the manifests, one a line, or the query."""
    from etkit.authoring import affected, changed_files
    from etkit.authoring.targets.update import BAZEL

    if options.bazel == bool(options.manifests):
        raise InputError.of("name manifests, or use --bazel without any")
    changed = changed_files.since(options.since, options.manifests[0].parent if options.manifests else Path.cwd())
    if options.bazel:
        workspace = BAZEL.root(Path.cwd())
        if workspace is None:
            raise InputError.of(f"{Path.cwd()}: not in a workspace of Bazel")
        print(affected.bazel_query(changed, workspace))
        return 0
    found: dict[str, list[str]] = {}
    for manifest in options.manifests:
        reasons = _reasons(manifest, options, changed)
        if reasons:
            found[str(manifest)] = reasons
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name in found:
            print(printable(name))
    return 0


def _reasons(manifest: Path, options: argparse.Namespace, changed: Any) -> list[str]:
    """The changed files that the manifest's program and its variants may be made from."""
    from etbuild.key.declared import Inputs
    from etbuild.manifest import validate
    from etbuild.manifest.positions import locating
    from etbuild.plan.plan import from_manifest
    from etkit.authoring import affected

    declared = Inputs({}, {}, [manifest.parent, *options.root])
    reasons: set[str] = set()
    for loaded in validate.load_each(manifest):
        with locating(loaded.positions):
            plan = from_manifest(loaded.data)
        reasons.update(affected.reasons(plan, manifest, declared, changed))
    return sorted(reasons)
