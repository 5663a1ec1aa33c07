"""Checks that the locks can be installed on the systems that they are for, and prints a table of these.

    python -m tools.check_locks [--write docs/support.md]

Needs `uv` on the PATH and a package index; takes about ten minutes, and installs nothing. For each Python and platform
of the locks, and for each extra, uv resolves the locks with `--require-hashes`: each package that is needed must be in
them, with a file for this Python and platform whose hash the index states. The table has the oldest system that has all
files. Python 3.10 and 3.14 have no locks: their rows are for the requirements of pyproject.toml. Exits with 1 if a lock
cannot be installed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import update_lock

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "toolchain"
BEGIN, END = "<!-- locks: python -m tools.check_locks -->\n", "<!-- end of locks -->\n"
WITHOUT_LOCKS = ("3.10", "3.14")
# Packages that their authors publish as sources only; they have no compiled code.
_SOURCES = ("antlr4-python3-runtime",)
# For each platform, by its name in the locks: its name in the table, its name for uv, and the release of macOS.
_SYSTEMS = {
    "x86_64-manylinux_2_28": [(f"glibc 2.{minor}", f"x86_64-manylinux_2_{minor}", "") for minor in (28, 35, 39)],
    "aarch64-manylinux_2_28": [(f"glibc 2.{minor}", f"aarch64-manylinux_2_{minor}", "") for minor in (28, 35, 39)],
    "aarch64-apple-darwin": [(f"macOS {major}", "aarch64-apple-darwin", f"{major}.0") for major in (14, 15)],
}


def check(python: str, platform: str, extra: str) -> tuple[str, str]:
    """Returns the oldest system that an extra (or the driver, for an empty name) can be installed on. If there is none,
    returns an empty string, and the reason why the newest one lacks a file."""
    why = ""
    for system, name, macos in _SYSTEMS[platform]:
        why = problem(python, name, macos, extra)
        if not why:
            return system, ""
    return "", why


def problem(python: str, platform: str, macos: str, extra: str) -> str:
    """Returns uv's message if an extra cannot be installed, or an empty string."""
    command = ["uv", "pip"]
    if python in WITHOUT_LOCKS:
        command += ["compile", str(ROOT / "pyproject.toml"), "--no-header"]
        command += ["--extra", extra] if extra else []
    else:
        locks = ["requirements", "requirements-cuda", *([f"requirements-{extra}"] if extra else [])]
        command += ["install", "--dry-run", "--require-hashes"]
        command += [word for lock in locks for word in ("--requirement", str(LOCKS / f"{lock}.lock"))]
    command += ["--quiet", "--python-version", python, "--python-platform", platform, "--only-binary", ":all:"]
    command += [word for name in _SOURCES for word in ("--no-binary", name)]
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": macos} if macos else None
    with tempfile.TemporaryDirectory() as folder:
        command += [] if python in WITHOUT_LOCKS else ["--target", folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"uv ends with status {done.returncode}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Check that the locks can be installed where they say.")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page, between its marks")
    options = parser.parse_args()
    pythons = (*update_lock.PYTHONS, *WITHOUT_LOCKS)
    parts = ["", *update_lock.extras()]
    cases = [(python, platform, part) for python in pythons for platform in update_lock.PLATFORMS for part in parts]
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(cases, pool.map(lambda case: check(*case), cases), strict=True))
    rows = [
        f"| Python | platform | {' | '.join(part or 'driver' for part in parts)} |",
        "|---|---|" + "---|" * len(parts),
    ]
    for python in pythons:
        for platform in update_lock.PLATFORMS:
            cells = [found[python, platform, part][0] or "no" for part in parts]
            label = python if python in update_lock.PYTHONS else f"{python}, no lock"
            rows.append(f"| {label} | {platform} | {' | '.join(cells)} |")
    table = "\n".join(rows) + "\n"
    print(table)
    if options.write:
        page, content = options.write.read_text("utf-8"), f"{BEGIN}\n{table}\n{END}"
        options.write.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: content, page, flags=re.DOTALL), "utf-8")
    wrong = {case: why for case, (_, why) in found.items() if why and case[0] in update_lock.PYTHONS}
    for case, why in wrong.items():
        print(f"{' '.join(case)}: {why}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
