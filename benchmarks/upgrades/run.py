#!/usr/bin/env python3
"""How much each commit of this repository that touches the driver builds again: the share of the steps of the examples.

    python -m benchmarks.upgrades.run [--commits 60] [--until COMMIT] [--write benchmarks/results]

A step is built again if the commit changed code of a package that the step runs, or of a plug-in that the program uses:
its key holds them. The packages are those of today, also for files that had another place then; a file that is gone
counts in the package of its name. The report is also written again if the export or the lowering was, since it names
the digests of what made the program. Bytes that stay the same stop the rest: a step whose inputs did not change is a
hit.

An action of a build rule has the files of its step and of the plug-ins that its target names, comments included.
Three rows of a table: keys, keys if comments counted, and actions.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import ROOT, Row
from etbuild.key import code
from etbuild.manifest import validate
from etbuild.plan.plan import Plan, from_manifest
from tests.conftest import MANIFESTS, variant
from tests.helpers.drivers import rules

DRIVER = ("toolchain/etbuild", "toolchain/etplugins", "schemas")
STEPS = ("plan", "export", "lower", "compare", "report")


@functools.cache
def _code(blob: str) -> str:
    return code.code_of(frame.git("cat-file", "blob", blob))


def _files(commit: str) -> dict[str, str]:
    """The files of the driver in a commit that are in keys, each with the digest of its blob."""
    rows = (line.partition("\t") for line in frame.git("ls-tree", "-r", commit, *DRIVER).splitlines())
    return {path: facts.split()[2] for facts, _, path in rows if path.endswith((".py", ".schema.json"))}


def _places_today(commit: str) -> dict[str, str]:
    """The files of a commit that lie elsewhere now, with their places of today."""
    asked = ("--find-renames=25%", "--diff-filter=R", "--name-status", "-l0")
    listed = frame.git("diff", *asked, commit, "HEAD", "--", *DRIVER)
    return {old: new for _, old, new in (line.split("\t") for line in listed.splitlines())}


def _package(path: str) -> str:
    """The package of a file: its name below `etbuild`, which is empty for a module beside packages, or a plug-in."""
    if path.startswith("schemas/"):
        return "schemas"
    place, *names = Path(path).relative_to("toolchain").parts
    return (names[0] if len(names) > 1 else "") if place == "etbuild" else f"{place}.{names[0]}"


@dataclass(frozen=True)
class Commit:
    """What a commit changed.

    Attributes:
        name: Its digest.
        subject: The first line of its message.
        packages: The packages of the driver in which it changed something.
        files: The changed files, by their places of today.
    """

    name: str
    subject: str
    packages: set[str]
    files: list[str]

    @classmethod
    def read(cls, name: str, subject: str, comments: bool) -> Commit:
        """Compares a commit with its parent. Comments and docstrings may count."""
        before, after = _files(f"{name}^"), _files(name)

        def differs(path: str) -> bool:
            if comments or not path.endswith(".py") or path not in before or path not in after:
                return before.get(path) != after.get(path)
            return before[path] != after[path] and _code(before[path]) != _code(after[path])

        changed = [path for path in sorted(before.keys() | after.keys()) if differs(path)]
        today = {} if all((ROOT / path).exists() for path in changed) else _places_today(name)
        files = [today.get(path, path) for path in changed]
        return cls(name, subject, {_package(path) for path in files}, files)

    def rebuilds(self, plan: Plan, actions: bool) -> Iterator[str]:
        """The steps of a program that the commit builds again.

        Args:
            plan: The plan of the program.
            actions: Whether build rules run the steps.
        """
        again = {step for step in STEPS if (self._in_action if actions else self._in_key)(step, plan)}
        if again & {"export", "lower"}:
            again.add("report")
        yield from again
        if "lower" in again:
            yield from (f"lower {name}" for name in plan.methods)

    def _in_key(self, step: str, plan: Plan) -> bool:
        own = {package for package, steps in code.packages().items() if step in steps}
        return not self.packages.isdisjoint(own | plan.plugins_of(step))

    def _in_action(self, step: str, plan: Plan) -> bool:
        of_rules, files = rules(), [path.removeprefix("toolchain/") for path in self.files]
        named = [name for name in plan.plugins_of_target() if of_rules["files_of_plugin"](files, name)]
        return bool(named or of_rules["files_of_step"](files, step))


def _plans() -> dict[str, Plan]:
    loaded = {name: validate.load(path, None, variant(name), {}) for name, path in MANIFESTS.items()}
    return {name: from_manifest(each.data) for name, each in loaded.items()}


KEYS = {
    "the command line": (False, False),
    "the same if comments and docstrings counted": (True, False),
    "actions of build rules": (True, True),
}
"""For each kind of keys, whether comments count, and whether it is what actions read."""


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--commits", type=int, default=60, help="how many commits that touch the driver")
    parser.add_argument("--until", default="HEAD", help="the last commit")
    options = parser.parse_args()
    frame.begin(options.write, loaded=True)  # it counts, and measures no time
    asked = ("log", "--no-merges", f"-{options.commits}", "--format=%H %s", options.until, "--", *DRIVER)
    listed = [line.partition(" ") for line in frame.git(*asked).splitlines()]
    plans = _plans()
    steps = sum(5 + len(plan.methods) for plan in plans.values())  # plan, export, lower, compare, report
    commits: list[Row] = [{"commit": name[:10]} for name, _, _ in listed]
    rows: list[Row] = []
    for kind, (comments, actions) in KEYS.items():
        shares = []
        for (name, _, subject), row in zip(listed, commits, strict=True):
            commit = Commit.read(name, subject, comments)
            again = sum(len([*commit.rebuilds(plan, actions)]) for plan in plans.values())
            shares.append(round(again / steps, 3))
            row[kind] = shares[-1]
        found = {"median": statistics.median(shares), "mean": round(statistics.mean(shares), 3)}
        rows.append({"keys of": kind, **found, "commits that rebuild nothing": shares.count(0), "of": len(shares)})
        frame.tell(rows[-1])
    frame.write(options.write, "upgrades", {"keys": rows, "commits": commits}, loaded=False)


if __name__ == "__main__":
    main()
