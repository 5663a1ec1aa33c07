#!/usr/bin/env python3
"""How much each commit of this repository that touches the driver builds again: the share of the steps of the examples.

    python benchmarks/upgrades/run.py [--actions] [--commits 60] [--until COMMIT] [--write benchmarks/results]

A step is built again if the commit changed a file of the driver that the step runs for this program: its key holds
these files. A file that is there today counts where today's table
(`step_files.bzl`) has it, and one that is gone where the same rule has it in that commit. The report is also written
again if the export or the lowering was, since it names the digests of what made the program. Bytes that stay the same
stop the rest: a step whose inputs did not change is a hit.

An action of a build rule has the files of its step for programs with any parts, those of other steps that it may have
to run (`toolchain/steps.bzl`), and the table: `--actions`.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "toolchain"), str(ROOT)]

from etbuild.inputs.step_files import code_of  # noqa: E402
from etbuild.manifest import validate  # noqa: E402
from etbuild.plan.plan import Plan, from_manifest  # noqa: E402
from tests.conftest import MANIFESTS, variant  # noqa: E402
from tools.step_files import STEPS, Source, backend_modules, files_of_checkout, step_files  # noqa: E402

DRIVER = "toolchain/etbuild"
_TABLE = "etbuild/step_files.bzl"
_NOT_IN_KEYS = ("action", "outside")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


@functools.cache
def _blob(identity: str) -> str:
    return _git("cat-file", "blob", identity)


def _files(commit: str) -> dict[str, Source]:
    """The files of the driver in a commit."""
    found = {}
    for line in _git("ls-tree", "-r", commit, DRIVER, "schemas").splitlines():  # a link of the driver names `schemas`
        facts, _, path = line.partition("\t")
        identity = facts.split()[2]
        if path.endswith((".py", ".schema.json", _TABLE)):
            path = f"etbuild/{path}" if path.startswith("schemas/") else path.removeprefix("toolchain/")
            found[path] = Source(functools.partial(_blob, identity), identity)
    return found


def _counted(source: Source, path: str, comments: bool) -> str:
    """What keys hold of a file."""
    if comments or not path.endswith(".py"):
        return source.identity
    return _code(source.identity, source.text)


_codes: dict[str, str] = {}


def _code(identity: str, text: Callable[[], str]) -> str:
    if identity not in _codes:
        _codes[identity] = code_of(text())
    return _codes[identity]


@dataclass(frozen=True)
class Commit:
    """What a commit changed.

    Attributes:
        name: Its digest.
        subject: The first line of its message.
        steps: For each changed file of the driver, the steps that run it, as in `step_files.bzl`.
    """

    name: str
    subject: str
    steps: dict[str, set[str]]

    @classmethod
    def read(cls, name: str, subject: str, today: Mapping[str, list[str]], comments: bool) -> Commit:
        """Compares a commit with its parent.

        Args:
            name: Its digest.
            subject: The first line of its message.
            today: The table of the files that are there now.
            comments: Whether comments and docstrings count.
        """
        sides = _files(f"{name}^"), _files(name)
        texts = [{path: _counted(source, path, comments) for path, source in side.items()} for side in sides]
        paths = {path for path in texts[0].keys() | texts[1].keys() if texts[0].get(path) != texts[1].get(path)}
        gone = {path for path in paths if not (ROOT / "toolchain" / path).exists()}
        tables = [step_files(side, backend_modules()) for side in sides] if gone else []
        steps = {path: set(today.get(path, ())) for path in paths}
        for path in gone:
            steps[path].update(*(table.get(path, ()) for table in tables))
        in_keys = {path: {tag for tag in of if tag.partition("/")[2] not in _NOT_IN_KEYS} for path, of in steps.items()}
        return cls(name, subject, in_keys)

    def rebuilds(self, plan: Plan, actions: bool) -> Iterator[str]:
        """The steps of a program that the commit builds again.

        Args:
            plan: The plan of the program.
            actions: Whether build rules run the steps.
        """
        again = {step for step in STEPS if (self._in_action(step) if actions else self._in_key(step, plan))}
        if again & {"export", "lower"}:
            again.add("report")
        yield from again
        if "lower" in again:
            yield from (f"lower {name}" for name in plan.methods)

    def _in_key(self, step: str, plan: Plan) -> bool:
        """Whether it changed a file in the key of a step."""
        wanted = {step, *(f"{step}/{part}" for part in plan.driver_parts(step))}
        return any(of & wanted for of in self.steps.values())

    def _in_action(self, step: str) -> bool:
        """Whether it changed a file of the action of a step."""
        return _TABLE in self.steps or len(_files_of_action(self.steps, step)) > 1  # the table is always in it


def _files_of_action(table: Mapping[str, Collection[str]], step: str) -> list[str]:
    rules: dict[str, Any] = {}
    exec((ROOT / "toolchain/steps.bzl").read_text("utf-8"), rules)
    found: list[str] = rules["files_of_step"](table, step)
    return found


def _plans() -> dict[str, Plan]:
    loaded = {name: validate.load(path, None, variant(name), {}) for name, path in MANIFESTS.items()}
    return {name: from_manifest(each.data) for name, each in loaded.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=60, help="how many commits that touch the driver")
    parser.add_argument("--comments", action="store_true", help="count comments and docstrings too")
    parser.add_argument("--actions", action="store_true", help="count what actions of build rules read, comments too")
    parser.add_argument("--until", default="HEAD", help="the last commit")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write upgrades.json there")
    options = parser.parse_args()
    listed = _git("log", "--no-merges", f"-{options.commits}", "--format=%H %s", options.until, "--", DRIVER)
    today, plans = step_files(files_of_checkout(), backend_modules()), _plans()
    of_program = {name: 5 + len(plan.methods) for name, plan in plans.items()}  # plan, export, lower, compare, report
    rows, shares = [], []
    for line in listed.splitlines():
        name, _, subject = line.partition(" ")
        commit = Commit.read(name, subject, today, options.comments or options.actions)
        again = sum(len([*commit.rebuilds(plan, options.actions)]) for plan in plans.values())
        tools = not any(commit.steps.values()) and not (options.actions and _TABLE in commit.steps)
        assert not (tools and again)
        shares.append(again / sum(of_program.values()))
        rows.append({"commit": commit.name[:10], "share": round(shares[-1], 3), "tools": tools})
        print(f"{commit.name[:10]}  {shares[-1]:4.0%}  {commit.subject}", flush=True)
    summary = {"median": statistics.median(shares), "mean": round(statistics.mean(shares), 3)}
    print(f"median {summary['median']:.0%}, mean {summary['mean']:.0%}, nothing: {shares.count(0)} of {len(shares)}")
    if options.write is not None:
        content = {"programs": len(plans), "steps": sum(of_program.values()), "commits": rows, **summary}
        (options.write / "upgrades.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
