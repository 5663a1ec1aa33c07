"""`etbuild history`: lists the versions of programs in a repository."""

from __future__ import annotations

import argparse
import json
from typing import Any

from etbuild.cli.options import add_parser, add_path, add_value
from etkit.registry import registry_options


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "history",
        "list the versions of programs in a repository, with size, delegation and memory",
        "Reads manifests, indexes and reports only.",
    )
    add_value(parser, "REPOSITORY", "a repository of a registry: REGISTRY/REPOSITORY")
    add_path(parser, "--svg FILE", "also draw a plot")
    registry_options.add(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the versions, and draws the plot."""
    from etbuild.errors import InputError
    from etkit.registry.oci import reference

    wanted = reference.parse(options.repository)
    if wanted.tag or wanted.sha256:
        raise InputError.of(f"{wanted}: names one version", "write only REGISTRY/REPOSITORY")

    from etbuild.publishing import artifacts
    from etkit.registry.oci import history

    with registry_options.repository(options, wanted) as repository:
        versions, skipped = history.read(repository, options.jobs)
    if options.svg is not None:
        artifacts.replace(options.svg, history.plot(versions).encode())
    if options.json:
        print(json.dumps(history.as_json(versions, skipped), indent=2))
        return 0
    print(_table(versions))
    if skipped:
        print(f"not packages of programs: {', '.join(skipped)}")
    return 0


def _table(versions: list[Any]) -> str:
    from etkit.tables import size, table

    rows = [("tags", "date", "program", "version", "size", "delegated", "memory")]
    for version in versions:
        for name, facts in version.programs.items():
            delegated = "-" if facts.delegated is None else f"{facts.delegated:.0%}"
            memory = "-" if facts.memory is None else size(facts.memory)
            date = (version.created or "-")[:10]
            rows.append(
                (", ".join(version.tags), date, name, facts.version or "-", size(facts.size), delegated, memory)
            )
    return table(rows)
