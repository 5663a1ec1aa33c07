"""The command `etbuild`, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LIMIT_SECONDS = 300.0


def command(*arguments: object) -> list[str]:
    """The words that run `etbuild` with these arguments."""
    return [sys.executable, "-m", "etbuild", *map(str, arguments)]


def etbuild(
    *arguments: object, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `etbuild`. The caller looks at the exit code.

    Args:
        arguments: Of the command.
        directory: Where it runs; by default where the test runs.
        environment: All variables that it has; by default those of the test.
    """
    return subprocess.run(
        command(*arguments),
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )


def build(manifest: Path, out: Path, *options: object, environment: Mapping[str, str] | None = None) -> None:
    """Runs `etbuild build`, which has to succeed.

    Args:
        manifest: What to build.
        out: The directory of the artifacts.
        options: Of `build`. Without `--cache-dir`, nothing is cached.
        environment: All variables that it has; by default those of the test.
    """
    cache = () if "--cache-dir" in options else ("--no-cache",)
    done = etbuild("build", manifest, "-o", out, *cache, *options, environment=environment)
    assert done.returncode == 0, done.stderr
