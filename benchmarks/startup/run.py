"""Compares two installations of etbuild on commands that need no torch: `--version`, `validate`, a build from the
cache.

    python benchmarks/startup/run.py --against OTHER/.venv/bin/etbuild [--runs 20]

The two run in turn, after one run of each that is not counted. Prints the medians of wall time, and the median of the
ratios of all pairs. `large` is a program with a weight of 100 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Python may write bytecode, as it does for users. Without it, the length of comments would count.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_LARGE = """\
schema: executorch-model/v1
name: large
model: {factory: "model:create"}
methods: {forward: {example_inputs: [{shape: [1, 5000]}]}}
"""
_LARGE_MODEL = """\
import torch

def create():
    return torch.nn.Linear(5000, 5000)
"""


def wall_seconds(command: list[str]) -> float:
    """Runs a command, which must succeed, and returns its wall seconds."""
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT)
    return time.monotonic() - start


def commands(etbuild: str, scratch: Path, large: Path) -> dict[str, list[str]]:
    """Returns the measured commands of one installation. Its cache and outputs are in `scratch`."""
    small = str(ROOT / "examples" / "tiny_lm" / "model.yaml")
    build = [etbuild, "build", "--cache-dir", str(scratch / "cache"), "-o", str(scratch / "out")]
    return {
        "--version": [etbuild, "--version"],
        "validate tiny_lm": [etbuild, "validate", small],
        "hit tiny_lm": [*build, small],
        "hit large": [*build, str(large)],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="ETBUILD", help="the command of the other installation")
    parser.add_argument("--runs", type=int, default=20, help="counted pairs (default: 20)")
    options = parser.parse_args()
    ours = str(Path(sys.executable).with_name("etbuild"))
    with tempfile.TemporaryDirectory() as name:
        project = Path(name, "project")
        project.mkdir()
        (project / "large.yaml").write_text(_LARGE, "utf-8")
        (project / "model.py").write_text(_LARGE_MODEL, "utf-8")
        large = project / "large.yaml"
        new, old = commands(ours, Path(name, "new"), large), commands(options.against, Path(name, "old"), large)
        print(f"{'':18} {'this, s':>9} {'other, s':>9} {'ratio':>7}   (medians of {options.runs} pairs)")
        for what in new:
            pairs = [(wall_seconds(new[what]), wall_seconds(old[what])) for _ in range(options.runs + 1)][1:]
            this, other = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{what:18} {this:9.3f} {other:9.3f} {ratio:7.3f}")


if __name__ == "__main__":
    main()
