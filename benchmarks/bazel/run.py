"""Measures a cold build of a few small programs in Bazel: how many seconds each kind of action takes.

    python -m benchmarks.bazel.run [--programs 8] [--backbones 3] [--repeat 1] [OPTION_OF_BAZEL ...]

Each build begins with an empty output base, and so with new workers. An action's seconds are those of Bazel's profile.
What the machine does besides lengthens all of them, so that the share of a kind of action tells more than its seconds.
BAZEL7 names the Bazel, as CONTRIBUTING.md says; without it, the one that BAZEL names is used.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.monorepo import workspace  # noqa: E402
from benchmarks.monorepo.run import Bazel, packages  # noqa: E402

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


def show(found: Seconds) -> None:
    """Prints a line for each kind of action, and the share of planning and reporting."""
    whole = sum(map(sum, found.values()))
    for kind, seconds in sorted(found.items(), key=lambda item: -sum(item[1])):
        each = " ".join(f"{one:.2f}" for one in sorted(seconds))
        print(f"{kind:12} {len(seconds):3} actions {sum(seconds):7.1f} s {sum(seconds) / whole:6.1%}   {each}")
    cheap = sum(sum(found.get(kind, [])) for kind in CHEAP)
    print(f"plan and report: {cheap:.1f} of {whole:.1f} s, {cheap / whole:.1%}", flush=True)


def main() -> None:
    """Builds and prints."""
    parser = argparse.ArgumentParser(description="Measure a cold build of a few small programs in Bazel.")
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--backbones", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    options, more = parser.parse_known_args()
    for _ in range(options.repeat):
        show(cold_build(options.programs, options.backbones, more))


if __name__ == "__main__":
    main()
