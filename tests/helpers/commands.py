"""Runs the command `etbuild` in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LIMIT_SECONDS = 300.0


def command(*arguments: object) -> list[str]:
    """Returns the command line that runs `etbuild` with these arguments."""
    return [sys.executable, "-m", "etbuild", *map(str, arguments)]


def etbuild(
    *arguments: object, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `etbuild`. The caller checks the exit code.

    Args:
        arguments: The arguments of the command.
        directory: Its current directory. Default: that of the test.
        environment: All its environment variables. Default: those of the test.
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
    """Runs `etbuild build`, which must succeed.

    Args:
        manifest: The manifest to build.
        out: The directory for the artifacts.
        options: Options of `build`. Without `--cache-dir`, nothing is cached.
        environment: All its environment variables. Default: those of the test.
    """
    cache = () if "--cache-dir" in options else ("--no-cache",)
    done = etbuild("build", manifest, "-o", out, *cache, *options, environment=environment)
    assert done.returncode == 0, done.stderr
