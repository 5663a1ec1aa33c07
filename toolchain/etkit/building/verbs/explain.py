"""`etbuild explain`: shows what a key is made of, or why the keys of two builds differ."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_inputs, add_parser, inputs, settings
from etbuild.errors import InputError, printable
from etkit.local.options import add_cache_directory, cache

if TYPE_CHECKING:
    from etbuild.results import BuildInputs

_MANIFESTS = (".yaml", ".yml")


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "explain", "show the parts of a key, or why the keys of two builds differ")
    what = (
        "an index, a directory with an index, a .pte in the directory of its index, a manifest, or a key in the cache"
    )
    parser.add_argument("build", metavar="A", help=what)
    parser.add_argument("other", nargs="?", metavar="B", help="a second build, in the same forms: show what differs")
    add_inputs(parser)
    add_cache_directory(parser)
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the tree of one build, or the differences of two."""
    first = _resolve(options.build, options)
    if options.other is None:
        _print_tree(first, options.json)
    else:
        _print_differences(first, _resolve(options.other, options), options.json)
    return 0


def _resolve(reference: str, options: argparse.Namespace) -> BuildInputs:
    """Returns `key`, `inputs` and `tensors` of an index, or of the index that a build of the manifest would write."""
    from etkit import find_index

    if find_index.is_key(reference):
        local_cache = cache(options.cache_dir)
        if local_cache is None:
            raise InputError.of(f"{reference}: there is no cache to search")
        return find_index.index_of_key(reference, local_cache)
    path = Path(reference)
    if path.suffix in _MANIFESTS:
        return _of_manifest(path, options)
    return find_index.index_of(path)


def _of_manifest(path: Path, options: argparse.Namespace) -> BuildInputs:
    from etbuild.files import digests
    from etbuild.inputs import checkpoints
    from etbuild.key import import_graph, key
    from etbuild.manifest import validate
    from etbuild.manifest.positions import locating
    from etbuild.model.tensor_digests import tensors_of_files
    from etbuild.plan.plan import from_manifest

    loaded = validate.load(path, None, options.variant, settings(options))
    with locating(loaded.positions):
        plan = from_manifest(loaded.data)
        declared = inputs(options, [path.parent, *options.root])
        described = key.describe_inputs(plan, declared, import_graph.used_sources(declared, plan.export_plan))
        weights = checkpoints.with_shards(plan.lower_plan.weights_names, declared)
        tensors = tensors_of_files({name: declared.find_data(name, where) for name, where in weights.items()})
    return {"key": digests.digest(described), "inputs": described, "tensors": tensors}


def _print_tree(build: BuildInputs, as_json: bool) -> None:
    from etkit.building import explanation
    from etkit.tables import table

    if as_json:
        print(json.dumps({"key": build["key"], "inputs": build["inputs"]}, indent=2, sort_keys=True))
        return
    rows = [("  " * depth + name, sha256, note) for depth, name, sha256, note in explanation.tree(build["inputs"])]
    print(table([("input", "sha256", ""), *rows]))


def _print_differences(before: BuildInputs, after: BuildInputs, as_json: bool) -> None:
    from etkit.building import explanation

    same = before["key"] == after["key"]
    lines = explanation.differences(before, after)
    steps = explanation.steps_to_run(before, after)
    if as_json:
        keys = [before["key"], after["key"]]
        print(json.dumps({"keys": keys, "same": same, "differences": lines, "steps": steps}, indent=2))
    elif same:
        print(f"the same key: {before['key']}")
    else:
        print(f"{before['key']} -> {after['key']}")
        print("\n".join([*map(printable, lines), f"to run again: {'; '.join(steps)}"]))
