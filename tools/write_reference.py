"""Writes the reference pages in `docs/reference/`, the table of packages in ARCHITECTURE.md, what the build rules load
from the driver, and the description of manifests: two schemas and `manifest.sections`.

`make reference`, or `python -m tools.write_reference`.
"""

from __future__ import annotations

from tools.reference import ARCHITECTURE, DIRECTORY, ROOT, fact_files, pages, schemas
from tools.reference.packages import with_packages


def main() -> None:
    """Writes every file, and removes pages that no source produces any more."""
    for name, text in (schemas.files() | fact_files()).items():  # first: the pages repeat what these files say
        (ROOT / name).write_text(text, "utf-8")
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
