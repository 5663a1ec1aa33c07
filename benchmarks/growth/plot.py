"""Draws the results of `run.py`."""

from __future__ import annotations

from pathlib import Path

from benchmarks import frame
from benchmarks.growth.run import SECTIONS

COLOURS = {"ours": "#2a9d8f", "plain": "#8d99ae", "optimum": "#e76f51"}
SHOWN = {"CPU": "processor seconds", "MB": "peak memory, MB"}


def plot(results: frame.Results, path: Path) -> None:
    """Draws processor seconds and peak memory against each size, with logarithmic axes."""
    sections = [name for name in SECTIONS if name in results["sections"]]
    about = "slopes of the lines in brackets"
    with frame.picture(path, 6, results["machine"], about, len(SHOWN), len(sections)) as axes:
        for column, section in enumerate(sections):
            steep = [row for row in results["sections"]["slopes"] if row["against"] == section]
            for place, key in zip(axes[:, column], SHOWN, strict=True):
                for row in steep:
                    name = row["build"]
                    rows = results["sections"][section]
                    sizes, figures = [each[section] for each in rows], [each[f"{name} {key}"] for each in rows]
                    label = f"{name} ({row[key]:.2f})"
                    place.loglog(sizes, figures, marker=".", color=COLOURS[name], label=label)
                place.legend(fontsize=6)
                place.tick_params(labelsize=6, which="both")
            axes[-1, column].set_xlabel("MB of weights" if section == "weights" else section, fontsize=8)
        for place, text in zip(axes[:, 0], SHOWN.values(), strict=True):
            place.set_ylabel(text, fontsize=8)
