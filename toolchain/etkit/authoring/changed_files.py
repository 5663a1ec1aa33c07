"""The files of a Git repository that differ from a commit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from etbuild.errors import InputError

_INSIDE, _HISTORY = "run it in a repository of Git", "fetch its history, as `git fetch --unshallow` does"


@dataclass(frozen=True)
class Changed:
    """Changed files.

    Attributes:
        root: The directory of the repository, without links.
        files: The paths of the files, relative to it. Some may be deleted.
    """

    root: Path
    files: list[str]

    def absolute(self) -> set[str]:
        """The paths of the files from the root of the file system."""
        return {os.path.normpath(self.root / file) for file in self.files}


def since(commit: str, directory: Path) -> Changed:
    """The files that differ between the working tree and the commit where this branch began.

    Args:
        commit: A commit, branch or tag. If the branch began before it, the common ancestor counts.
        directory: A directory of the repository.

    Raises:
        InputError: There is no Git, no repository, or no such commit.
    """
    if commit.startswith("-"):
        raise InputError.of(f"--since {commit}: not the name of a commit")
    root = Path(os.fsdecode(_git(directory, "rev-parse", "--show-toplevel", hint=_INSIDE)).rstrip("\n")).resolve()
    _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", what=f"--since {commit}: no such commit")
    unrelated = f"--since {commit}: no common ancestor with HEAD"
    base = _git(root, "merge-base", commit, "HEAD", what=unrelated).decode().strip()
    listed = _git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", base, "--")
    listed += _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return Changed(root, sorted({os.fsdecode(name) for name in listed.split(b"\0") if name}))


def _git(directory: Path, *arguments: str, what: str | None = None, hint: str = _HISTORY) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, check=False)
    except OSError as error:
        raise InputError.of(f"git cannot be run: {error.strerror}", "install Git") from None
    if done.returncode:
        raise InputError.of(what or f"git {arguments[0]}: {os.fsdecode(done.stderr).strip()}", hint)
    return done.stdout
