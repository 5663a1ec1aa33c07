"""`etbuild doctor`: shows what this machine has for builds, and what it lacks."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_cache_directory, add_flag, add_parser
from etbuild.errors import printable

if TYPE_CHECKING:
    from etkit.analysis.installation import Finding


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "doctor",
        "show what this machine has for builds, and what it lacks",
        "Looks at Python, packages, backends, build systems, the cache and the disk. Builds nothing.",
    )
    add_cache_directory(parser)
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the findings."""
    from etbuild.version import VERSION
    from etkit.analysis import installation

    found = []
    if not options.json:
        print(f"etbuild {VERSION}")
    for finding in installation.findings(options.cache_dir):
        found.append(finding)
        if not options.json:
            print(_shown(finding, found[-2].about if len(found) > 1 else ""), flush=True)
    if options.json:
        print(json.dumps({"version": VERSION, "findings": list(map(dataclasses.asdict, found))}, indent=2))
    return 1 if any(finding.state == installation.BAD for finding in found) else 0


def _shown(finding: Finding, before: str) -> str:
    """A line for a finding and one for its advice, below a heading if the one before was about something else."""
    from etbuild.cli.terminal import BOLD, DIM, GREEN, RED, paint
    from etkit.analysis import installation

    mark, colour = {
        installation.GOOD: ("✓", GREEN),
        installation.ABSENT: ("-", DIM),
        installation.BAD: ("✗", RED),
    }[finding.state]
    head = "" if finding.about == before else f"\n{paint(finding.about, BOLD, sys.stdout)}\n"
    advice = f"\n      {printable(finding.advice)}" if finding.advice else ""
    return f"{head}  {paint(mark, colour, sys.stdout)} {printable(finding.said)}{paint(advice, DIM, sys.stdout)}"
