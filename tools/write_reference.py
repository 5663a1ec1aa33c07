"""Writes the reference pages in `docs/reference/` and the table of packages in ARCHITECTURE.md.

`make reference`, or `python -m tools.write_reference`.
"""

from __future__ import annotations

from tools.reference import ARCHITECTURE, DIRECTORY, ROOT, pages
from tools.reference.packages import with_packages


def main() -> None:
    """Writes every page, and removes pages that no source produces any more."""
    written = pages()
    for path in DIRECTORY.rglob("*.md"):
        if path.relative_to(DIRECTORY).as_posix() not in written:
            path.unlink()
    for name, text in written.items():
        (DIRECTORY / name).parent.mkdir(parents=True, exist_ok=True)
        (DIRECTORY / name).write_text(text, "utf-8")
    ARCHITECTURE.write_text(with_packages(ARCHITECTURE.read_text("utf-8"), ROOT), "utf-8")


if __name__ == "__main__":
    main()
