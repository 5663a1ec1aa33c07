"""The flags of a Bazel with which later versions begin: `--incompatible_*`. Which of them do the rules not survive?

    BAZEL7=COMMAND python -m tests.bazel.flags [--together] PACKAGES

analyses three workspaces with each flag by itself, or with all at once, and prints those that fail. `PACKAGES` is the
directory of `@rules_executorch_packages`, which Bazel then does not build. It takes some minutes for each workspace.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]
"""Runs Bazel: `run(workspace, binds, *arguments)`."""

CPP = ("//examples/cpp:generate", "//examples/cpp:generate_embedded")
WORKSPACES = {".": ("//...", *CPP), "e2e/smoke": ("//...",), "tests/bazel/outside": ("//...",)}
"""Directories of workspaces, each with what is analysed there: the project, and two that use it from outside."""

OF_BAZEL = {
    "--incompatible_no_rule_outputs_param": "its own rule cc_binary has such a parameter",
    "--incompatible_python_disallow_native_rules": "its own toolchain of Python is a native py_runtime",
    "--incompatible_stop_exporting_language_modules": "its own rules of Java, and an old rules_cc, use these",
}
"""Flags with which Bazel 7.7 refuses what it brings itself, with what that is. Other workspaces fail with them too."""


def flags(described: str) -> list[str]:
    """The flags of `bazel build` that can be on or off.

    Args:
        described: What `bazel help flags-as-proto` prints.
    """
    found = []
    for number, flag in _fields(base64.b64decode(described)):
        if number != 1 or not isinstance(flag, bytes):
            continue
        values = [*_fields(flag)]
        name = next(value.decode() for key, value in values if key == 1 and isinstance(value, bytes))
        if name.startswith("incompatible_") and (2, 1) in values and (4, b"build") in values:
            found.append(f"--{name}")
    return sorted(found)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of Protocol Buffers that has no fixed numbers: their numbers and values."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        value = number()
        if key & 7 == 2:
            yield key >> 3, message[at : at + value]
            at += value
        else:
            yield key >> 3, value


def overrides(packages: Path) -> list[str]:
    """The options that name the packages in each way in which Bazel 7 to 9 may call their repository."""
    places = ("_main~executorch~", "rules_executorch~~executorch~", "+executorch+", "rules_executorch++executorch+")
    return [f"--override_repository={place}rules_executorch_packages={packages}" for place in places]


def analyse(run: Run, root: Path, workspace: str, packages: Path, given: Sequence[str]) -> str:
    """Analyses a workspace with flags. Returns the first error; empty if there is none."""
    done = run(
        root / workspace, [packages, root], "build", "--nobuild", *overrides(packages), *given, *WORKSPACES[workspace]
    )
    errors = re.findall(r"^ERROR: (.*)", done.stderr, re.MULTILINE)
    return "" if done.returncode == 0 else (errors or [done.stderr[-500:]])[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("packages", type=Path)
    options = parser.parse_args()
    command = os.environ["BAZEL7"]

    def run(workspace: Path, binds: Sequence[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "BAZEL7_BIND": " ".join(map(str, binds))}
        return subprocess.run(
            [command, str(workspace), *arguments], env=environment, capture_output=True, text=True, check=False
        )

    every = flags(run(REPOSITORY, [], "help", "flags-as-proto").stdout)
    groups = [[each for each in every if each not in OF_BAZEL]] if options.together else [[each] for each in every]
    broken = 0
    for workspace in WORKSPACES:
        for group in groups:
            if error := analyse(run, REPOSITORY, workspace, options.packages, group):
                broken += 1
                print(f"{workspace}: {' '.join(group)}: {error}", flush=True)
        print(f"{workspace}: {len(every)} flags", flush=True)
    return min(broken, 1)


if __name__ == "__main__":
    raise SystemExit(main())
