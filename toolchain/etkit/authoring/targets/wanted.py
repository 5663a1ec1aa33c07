"""The attributes of targets that repeat what the manifest says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from etbuild.errors import EtbuildError
from etbuild.files.weights_suffixes import INDEX_SUFFIXES
from etbuild.key.declared import Inputs
from etbuild.manifest import plugin_sections, validate
from etbuild.manifest.positions import locating
from etbuild.plan.expectations import INPUTS
from etbuild.plan.plan import Plan, from_manifest
from etplugins.samples.names import matches


@dataclass(frozen=True)
class Wanted:
    """The attributes of a manifest's target, for one variant and some values of parameters.

    Attributes:
        name: The `name` in the manifest, with that of the variant.
        lists: The values of the attributes that repeat the manifest.
        files: The names of the files, by attribute.
        export: What the export depends on, as JSON.
        plan: The plan.
        needed: The packages of the plug-ins that planning needs.
    """

    name: str
    lists: dict[str, list[str]]
    files: dict[str, list[str]]
    export: dict[str, Any]
    plan: Plan
    needed: set[str]


def load(manifest: Path, variant: str | None, settings: Mapping[str, str]) -> Wanted:
    """Reads a manifest.

    Raises:
        InputError: The manifest has problems, or no such variant.
    """
    [loaded] = validate.load_each(manifest, None, [variant], settings)
    with locating(loaded.positions):
        plan, needed = from_manifest(loaded.data), plugin_sections.needed(loaded.data)
    named = {attribute: row.names(plan) for attribute, row in INPUTS.items()}
    named["weights"] = {name: place for name, place in named["weights"].items() if name not in named["data"]}
    return Wanted(
        plan.name,
        {
            "backends": plan.backends,
            "methods": sorted(plan.methods),
            "plugins": plan.plugins_of_target(needed),
            "named_data": [tag for tag in plan.tags if tag not in plan.sharded_tags],
            "sharded_named_data": plan.sharded_tags,
        },
        {attribute: sorted(set(_with_shards(manifest.parent, names))) for attribute, names in named.items()},
        plan.export_plan.to_json(),
        plan,
        needed,
    )


def _with_shards(directory: Path, names: Iterable[str]) -> list[str]:
    """The names, with the names of shards if one of them is an index."""
    found = []
    for name in names:
        files = [file.relative_to(directory).as_posix() for file in directory.glob(name)]
        found += [file for file in files if matches(file, name)] or [name]
        if name.endswith(INDEX_SUFFIXES) and (directory / name).is_file():
            try:
                shards = set(json.loads((directory / name).read_bytes())["weight_map"].values())
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # the build reports the error
            found += [str(PurePosixPath(name).parent / shard) for shard in shards if isinstance(shard, str)]
    return found


def sources(wanted: Wanted, manifest: Path) -> tuple[list[str], list[str]]:
    """The sources beside a manifest that its program imports, and the modules that are elsewhere.

    A module that is neither beside the manifest nor installed is in a library. Only the user knows which.
    """
    from etbuild.key.import_graph import used_sources

    try:
        used = used_sources(Inputs({}, {}, [manifest.parent]), wanted.plan.export_plan)
    except EtbuildError:
        return [], sorted({name.partition(":")[0] for name in wanted.plan.export_plan.callables})
    beside = {each.stem for each in manifest.parent.glob("*.py")}
    return list(used.sources), sorted(name for name in used.packages if find_spec(name) is None and name not in beside)
