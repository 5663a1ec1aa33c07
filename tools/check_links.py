"""Checks the links of all Markdown files to files and headings of the repository: `python -m tools.check_links`.

Links to other sites are not checked.
"""

from __future__ import annotations

import posixpath
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from tools.markdown_links import Link, anchors, links

_TEMPLATES = "_template.md"  # links of templates are checked in the pages that are made from them


def broken_links(root: Path, files: Iterable[str]) -> Iterator[str]:
    """Yields a message for each broken link.

    Args:
        root: The root of the repository.
        files: All files of the repository, relative to the root.
    """
    known = set(files)
    folders = {str(parent) for file in known for parent in Path(file).parents}
    anchors_of = cache(lambda page: anchors((root / page).read_text("utf-8")))

    def problem(page: str, link: Link) -> str | None:
        path = unquote(link.path)
        if path.startswith("/"):
            return "write the path relative to this file"
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if target not in known and target not in folders:
            return "there is no such file"
        if link.anchor and target.endswith(".md") and unquote(link.anchor) not in anchors_of(target):
            return f"{target} has no such heading"
        return None

    for page in sorted(file for file in known if file.endswith(".md") and not file.endswith(_TEMPLATES)):
        for link in links((root / page).read_text("utf-8")):
            message = problem(page, link)
            if message:
                yield f"{page}:{link.line}: {link.target}: {message}"


def main() -> int:
    """Prints the broken links of the repository around the current directory, and returns the exit code."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = list(broken_links(Path(), [file for file in listed if Path(file).exists()]))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
