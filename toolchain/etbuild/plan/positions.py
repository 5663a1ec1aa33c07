"""The positions of a manifest's values as JSON data, for the file next to a plan."""

from __future__ import annotations

from typing import Any

from etbuild.errors import DocumentPath, Position


def positions_to_json(positions: dict[DocumentPath, Position]) -> list[Any]:
    """The positions as JSON data: a list of `[path, file, line, column]`."""
    return [[list(path), p.file, p.line, p.column] for path, p in positions.items()]


def positions_from_json(data: list[Any]) -> dict[DocumentPath, Position]:
    """Reads the result of `positions_to_json`."""
    return {tuple(path): Position(file, line, column) for path, file, line, column in data}
