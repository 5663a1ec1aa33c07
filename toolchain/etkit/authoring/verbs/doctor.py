"""`etbuild doctor`: shows what this machine has for builds, and what it lacks."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_parser
from etbuild.errors import printable
from etkit.local.options import add_cache_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from etkit.authoring.installation import Finding


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "doctor",
        "show what this machine has for builds, and what it lacks",
        "Looks at Python, packages, backends, build systems, the cache and the disk. Builds nothing.",
    )
    add_cache_directory(parser)
    add_flag(parser, "--all", "say of each thing that is not here what it needs")
    add_flag(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Prints each finding as soon as it is there."""
    from etbuild.version import VERSION
    from etkit.authoring import installation

    found: list[Finding] = []
    if options.json:
        found += installation.findings(options.cache_dir)
        print(json.dumps({"version": VERSION, "findings": list(map(dataclasses.asdict, found))}, indent=2))
    else:
        print(f"etbuild {VERSION}")
        group = ""
        for finding in installation.findings(options.cache_dir):
            found.append(finding)
            if finding.state != installation.ABSENT:
                print(_shown(finding, group), flush=True)
                group = finding.about
        absent = _once([finding for finding in found if finding.state == installation.ABSENT])
        print(_absent(absent) if options.all else _folded(absent))
        print(f"\n{_verdict(found)}")
    return 1 if any(finding.state == installation.BAD for finding in found) else 0


def _verdict(found: Sequence[Finding]) -> str:
    """What builds can do here, in a few words."""
    from etkit.authoring import installation

    bad = [finding for finding in found if finding.state == installation.BAD]
    if bad:
        return f"not ready: {len(bad)} of the things above {'are' if len(bad) > 1 else 'is'} missing or broken"
    backends = [each.said.split()[0] for each in found if (each.about, each.state) == ("backend", installation.GOOD)]
    return f"ready to build for {', '.join(backends)}"


def _once(absent: Sequence[Finding]) -> list[Finding]:
    """Absent things, but no extra whose backend is absent too: the line of the backend names the extra."""
    backends = {_name(finding) for finding in absent if finding.about == "backend"}
    return [each for each in absent if each.about != "extra" or _name(each) not in backends]


def _name(finding: Finding) -> str:
    return finding.said.partition(":")[0]


def _folded(absent: Sequence[Finding]) -> str:
    """A line for each group of things that only some programs need and that are not here."""
    groups: dict[str, list[str]] = {}
    for finding in absent:
        groups.setdefault(finding.about, []).append(_name(finding))
    lines = [f"  - {printable(f'{about}: ' + ', '.join(names))}" for about, names in groups.items()]
    return _with_head(lines, "; `etbuild doctor --all` says what they need")


def _absent(absent: Sequence[Finding]) -> str:
    """A line for each thing that only some programs need and that is not here."""
    return _with_head(
        [f"  - {printable(': '.join(filter(None, (f'{each.about} {each.said}', each.advice))))}" for each in absent]
    )


def _with_head(lines: Sequence[str], more: str = "") -> str:
    from etbuild.cli.terminal import BOLD, DIM, paint

    head = f"\n{paint(f'not here, and only needed by those who use it{more}', BOLD, sys.stdout)}"
    return "\n".join([head, *(paint(line, DIM, sys.stdout) for line in lines)]) if lines else ""


def _shown(finding: Finding, before: str) -> str:
    """A line for a finding, and one for its advice. A heading precedes the first finding of a kind."""
    from etbuild.cli.terminal import BOLD, DIM, GREEN, RED, paint
    from etkit.authoring import installation

    mark, colour = {
        installation.GOOD: ("✓", GREEN),
        installation.BAD: ("✗", RED),
    }[finding.state]
    head = "" if finding.about == before else f"\n{paint(finding.about, BOLD, sys.stdout)}\n"
    advice = f"\n      {printable(finding.advice)}" if finding.advice else ""
    return f"{head}  {paint(mark, colour, sys.stdout)} {printable(finding.said)}{paint(advice, DIM, sys.stdout)}"
