"""Draws the results of `run.py`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import frame

COLOURS = {"cold / plain": "#2a9d8f", "warm / plain": "#e76f51"}
NAMES = {"cold / plain": "etbuild, nothing cached", "warm / plain": "etbuild, warm worker"}


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the time of each model as a part of the plain script's, in an SVG. The same results give the same file."""
    rows = sorted(results["sections"]["models"], key=lambda row: row["cold / plain"])
    with frame.picture(path, 1.5 + 0.32 * len(rows), results["machine"], "in brackets the number of methods") as axes:
        _draw(axes, rows)


def _draw(axes: Any, rows: list[frame.Row]) -> None:
    for number, (ratio, colour) in enumerate(COLOURS.items()):
        places = [place + (number - 0.5) * 0.4 for place in range(len(rows))]
        axes.barh(places, [row[ratio] for row in rows], 0.38, color=colour, label=NAMES[ratio])
        median = statistics.median(row[ratio] for row in rows)
        axes.axvline(median, color=colour, linestyle=":", linewidth=1)
        axes.text(median, -0.9, f"{median:.2f}", color=colour, ha="center", fontsize=7)
    axes.axvline(1, color="#8d99ae", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{row['model']} ({row['methods']})" for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("wall time as a part of the plain script's; dotted lines are medians")
    axes.legend(loc="lower right", fontsize=8)
