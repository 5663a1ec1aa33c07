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
    from collections.abc import Sequence

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

    found = [*installation.findings(options.cache_dir)]
    if options.json:
        print(json.dumps({"version": VERSION, "findings": list(map(dataclasses.asdict, found))}, indent=2))
    else:
        print(f"etbuild {VERSION}: {_verdict(found)}")
        here = [each for each in found if each.state != installation.ABSENT]
        for before, finding in zip([None, *here], here, strict=False):
            print(_shown(finding, before.about if before is not None else ""))
        print(_absent([each for each in found if each.state == installation.ABSENT]))
    return 1 if any(finding.state == installation.BAD for finding in found) else 0


def _verdict(found: Sequence[Finding]) -> str:
    """What builds can do here, in a few words."""
    from etkit.analysis import installation

    bad = [finding for finding in found if finding.state == installation.BAD]
    if bad:
        return f"not ready, {len(bad)} of the things below {'are' if len(bad) > 1 else 'is'} missing or broken"
    backends = [each.said.split()[0] for each in found if (each.about, each.state) == ("backend", installation.GOOD)]
    return f"ready to build for {', '.join(backends)}"


def _absent(found: Sequence[Finding]) -> str:
    """A line for each thing that only some programs need and that is not here."""
    from etbuild.cli.terminal import BOLD, DIM, paint

    lines = [f"  - {printable(': '.join(filter(None, (each.said, each.advice))))}" for each in found]
    head = f"\n{paint('not here, and only needed by those who use it', BOLD, sys.stdout)}"
    return "\n".join([head, *(paint(line, DIM, sys.stdout) for line in lines)]) if lines else ""


def _shown(finding: Finding, before: str) -> str:
    """A line for a finding and one for its advice, below a heading if the one before was about something else."""
    from etbuild.cli.terminal import BOLD, DIM, GREEN, RED, paint
    from etkit.analysis import installation

    mark, colour = {
        installation.GOOD: ("✓", GREEN),
        installation.BAD: ("✗", RED),
    }[finding.state]
    head = "" if finding.about == before else f"\n{paint(finding.about, BOLD, sys.stdout)}\n"
    advice = f"\n      {printable(finding.advice)}" if finding.advice else ""
    return f"{head}  {paint(mark, colour, sys.stdout)} {printable(finding.said)}{paint(advice, DIM, sys.stdout)}"
