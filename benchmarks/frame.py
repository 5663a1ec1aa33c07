"""What the benchmarks share: their options, and results that name the commit that was measured.

The results of a benchmark are in one file, `benchmarks/results/NAME.json`: the machine, and sections of rows.
`measured` names for each section the commit and the digest of the code of its steps. `tools/write_figures.py` makes
pages of it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import compile_driver
from etbuild import plugins
from etbuild.key import code

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
OTHERS = 0.15
"""So many processors may be used by others on a quiet machine."""
Row = dict[str, Any]
Results = dict[str, Any]


def parser(text: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--write", type=Path, metavar="DIR", help="write the results there, such as benchmarks/results")
    made.add_argument("--loaded", action="store_true", help="measure while others work; the results say so")
    return made


def begin(write: Path | None, loaded: bool) -> None:
    """Prepares the driver. Ends the process if the results could not say what was measured."""
    compile_driver(ROOT)
    os.environ["ETBUILD_NO_SERVER"] = "1"  # a build would leave a process that makes the next one faster
    if write is None:
        return
    if git("status", "--porcelain", "--", "toolchain", "schemas"):
        sys.exit("commit the driver first: results name the commit that was measured")
    if not loaded and (used := processors_of_others()) > OTHERS:
        sys.exit(f"others use {used:.1f} processors: wait until the machine is quiet, or say `--loaded`")


def git(*arguments: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def processors_of_others(seconds: float = 3.0) -> float:
    """How many processors are busy while this process sleeps."""

    def read() -> list[int]:
        return [int(word) for word in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:9]]

    before = read()
    time.sleep(seconds)
    spent = [now - then for now, then in zip(read(), before, strict=True)]
    idle = spent[3] + spent[4]  # the latter waits for disks
    return (1 - idle / max(1, sum(spent))) * (os.cpu_count() or 1)


def digest() -> str:
    """A digest of the code that any step may run, with all plug-ins, as keys of steps have it."""
    used = [name for name in plugins.plugins() if name.startswith(f"{plugins.PLACES[0]}.")]
    steps = sorted({step for row in code.packages().values() for step in row})
    text = json.dumps({step: code.digest_of(step, used) for step in steps})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def origin(loaded: bool) -> Row:
    """The commit that is measured now."""
    found: Row = {"commit": git("rev-parse", "--short=10", "HEAD"), "code": digest()}
    return {**found, "loaded": True} if loaded else found


def machine() -> Row:
    """What the figures depend on, besides the code."""
    here = {"processors": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {**here, **{name: importlib.metadata.version(name) for name in ("torch", "executorch", "transformers")}}


def read(name: str, directory: Path | None = None) -> Results:
    """The results of a benchmark; without sections if there are none."""
    path = (directory or RESULTS) / f"{name}.json"
    return (
        dict(json.loads(path.read_text("utf-8"))) if path.exists() else {"machine": {}, "measured": {}, "sections": {}}
    )


def joined(directory: Path | None, name: str, section: str, rows: list[Row], loaded: bool) -> list[Row]:
    """Rows, and those of other models that an earlier run has measured: with the same code, on the same machine, and
    with as much other work. So a long benchmark can be measured in parts.

    Args:
        directory: That of the results. None: there are no earlier ones.
        name: The benchmark.
        section: The section of the rows.
        rows: What was measured now. The first column names the model.
        loaded: Whether the machine did other work.
    """
    kept = read(name, directory)
    then = kept["measured"].get(section, {})
    if not rows or directory is None or kept["machine"] != machine():
        return rows
    if (then.get("code"), then.get("loaded", False)) != (digest(), loaded):
        return rows
    model = next(iter(rows[0]))
    now = {row[model] for row in rows}
    return [*(row for row in kept["sections"][section] if row[model] not in now), *rows]


def write(directory: Path | None, name: str, sections: dict[str, list[Row]], loaded: bool) -> None:
    """Writes results, if a directory is given. Keeps the sections of the same machine that were not measured now."""
    if directory is None:
        return
    kept = read(name, directory)
    if not kept["machine"].items() <= machine().items():
        kept = {"measured": {}, "sections": {}}
    measured = {**kept["measured"], **dict.fromkeys(sections, origin(loaded))}
    results = {"machine": machine(), "measured": measured, "sections": {**kept["sections"], **sections}}
    (directory / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def summary(rows: list[Row], keys: Sequence[str]) -> list[Row]:
    """The median and the largest of columns."""
    columns = {key: [float(row[key]) for row in rows] for key in keys}
    return [{"ratio": key, "median": statistics.median(each), "worst": max(each)} for key, each in columns.items()]


def shown(value: Any) -> str:
    """A cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return str(value)


def table(rows: list[Row], columns: Sequence[str] = ()) -> str:
    """Rows in Markdown. Lists are no cells."""
    columns = columns or [
        *dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list))
    ]
    numbers = {key: any(isinstance(row.get(key), int | float) for row in rows) for key in columns}
    lines = [columns, ["---:" if numbers[key] else "---" for key in columns]]
    lines += [[shown(row.get(key, "")) for key in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tell(row: Row) -> None:
    """Prints a row."""
    print("  ".join(f"{key} {shown(value)}" for key, value in row.items()), flush=True)


@contextlib.contextmanager
def picture(path: Path, height: float, of: Row, about: str, rows: int = 1, columns: int = 1) -> Iterator[Any]:
    """Axes to draw on, in rows and columns if there are several. They become an SVG, the same for the same results."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "rules_executorch"
    figure, axes = plt.subplots(rows, columns, figsize=(9, height), squeeze=rows * columns == 1)
    yield axes
    figure.suptitle(
        f"{of['processors']} processors, torch {of['torch']}, executorch {of['executorch']}; {about}", fontsize=9
    )
    for one in figure.axes:
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
