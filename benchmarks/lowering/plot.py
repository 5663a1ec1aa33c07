"""Draws the results of `run.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.patches import Rectangle

from benchmarks import frame

COLOURS = {"plain": "#8d99ae", "cold": "#2a9d8f", "warm": "#e76f51", "hit": "#264653", "cached": "#264653"}
NAMES = {
    "plain": "plain ExecuTorch script",
    "cold": "etbuild, nothing cached",
    "warm": "etbuild, warm worker",
    "hit": "etbuild, from the cache",
    "cached": "etbuild, other methods cached",
}


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the builds of each program as bars, in an SVG. The same results give the same file."""
    rows = [row for section in ("bars", "edit") for row in results["sections"].get(section, ()) if "plain" in row]
    about = "the same programs, byte for byte"
    with frame.picture(path, 1 + 0.75 * len(rows), results["machine"], about) as axes:
        _draw(axes, rows)


def _draw(axes: Any, rows: list[frame.Row]) -> None:
    for place, row in enumerate(rows):
        builds = [build for build in COLOURS if build in row]
        for number, build in enumerate(builds):
            y = place + (number - len(builds) / 2 + 0.5) * 0.8 / len(builds)
            axes.barh(y, row[build], 0.75 / len(builds), color=COLOURS[build])
            share = "" if build == "plain" else f"  {row[build] / row['plain']:.3f}x"
            axes.text(row[build], y, f" {row[build]:.1f} s{share}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [row["program"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    used = [build for build in COLOURS if any(build in row for row in rows)]
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[build]) for build in used]
    axes.legend(handles, [NAMES[build] for build in used], loc="lower right", fontsize=8)
