"""Measures a cold build of a few small programs in Bazel: how many seconds each kind of action takes.

    python -m benchmarks.bazel.run [--programs 8] [--backbones 3] [--repeat 1] [OPTION_OF_BAZEL ...]

Each build begins with an empty output base, and so with new workers. An action's seconds are those of Bazel's profile.
What the machine does besides lengthens all of them, so that the share of a kind of action tells more than its seconds.
BAZEL7 names the Bazel, as CONTRIBUTING.md says; without it, the one that BAZEL names is used.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections import defaultdict
from itertools import chain
from pathlib import Path

from benchmarks import frame
from benchmarks.monorepo import workspace
from benchmarks.monorepo.run import Bazel, packages

CHEAP = ("Planning", "Checking")
"""What Bazel shows for ExecutorchPlan and ExecutorchReport. A profile of Bazel 4 names no mnemonics."""

Seconds = dict[str, list[float]]


def cold_build(programs: int, backbones: int, options: list[str]) -> Seconds:
    """Builds programs in a new workspace with a new output base.

    Args:
        programs: How many programs.
        backbones: How many backbones they share.
        options: More options of Bazel.

    Returns:
        The seconds of each action, by the first word that Bazel shows for it: `Planning`, `Exporting`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        directory, output_root = Path(scratch, "few"), Path(scratch, "output")
        output_root.mkdir()
        workspace.write(directory, programs, backbones, teams=2)
        bazel = Bazel(directory, output_root, packages(), os.environ.get("BAZEL7", ""))
        profile = output_root / "profile.gz"
        try:
            built = bazel.build("//apps/...", f"--profile={profile}", "--strategy=CopyDriver=local", *options)
        finally:
            bazel.stop()
        print(f"{built['seconds']} s: {built['actions']}", flush=True)
        return by_kind(profile)


def by_kind(profile: Path) -> Seconds:
    """Reads the seconds of each action from a profile of Bazel."""
    found: Seconds = defaultdict(list)
    for event in json.loads(gzip.decompress(profile.read_bytes()))["traceEvents"]:
        if event.get("cat") == "action processing":
            found[event["name"].split()[0]].append(event["dur"] / 1e6)
    return found


def rows(found: Seconds) -> list[frame.Row]:
    """A row for each kind of action, and the share of planning and reporting."""
    whole = sum(map(sum, found.values()))
    listed = {**dict(sorted(found.items(), key=lambda item: -sum(item[1]))), "all": [*chain(*found.values())]}
    listed["plan and report"] = [*chain(*(found.get(kind, []) for kind in CHEAP))]
    return [
        {"actions": kind, "number": len(each), "seconds": sum(each), "share": sum(each) / whole}
        for kind, each in listed.items()
    ]


def main() -> None:
    """Builds and prints."""
    parser = frame.parser(__doc__)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--backbones", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    options, more = parser.parse_known_args()
    frame.begin(options.write, options.loaded)
    for _ in range(options.repeat):
        found = rows(cold_build(options.programs, options.backbones, more))
        print(frame.table(found), flush=True)
    frame.write(options.write, "bazel", {"actions": found}, options.loaded)


if __name__ == "__main__":
    main()
