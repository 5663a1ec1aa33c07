"""Writes the reference pages in `docs/reference/`: `python -m tools.write_reference`, or `make reference`."""

from __future__ import annotations

from tools.reference import DIRECTORY, pages


def main() -> None:
    """Writes every page, and removes pages that no source produces any more."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    written = pages()
    for stale in {path.name for path in DIRECTORY.glob("*.md")} - set(written):
        (DIRECTORY / stale).unlink()
    for name, text in written.items():
        (DIRECTORY / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
