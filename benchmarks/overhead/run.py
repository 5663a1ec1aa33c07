"""Measures the driver's own cost: `etbuild build` of examples/tiny_lm against the plain ExecuTorch script of this
folder.

    python benchmarks/overhead/run.py [--runs 5]

Prints the ratio of user + system time of whole processes, including their children. The two run in turn, after one run
of each that is not counted. It fails if a byte of the two programs differs.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
MANIFEST = HERE.parents[1] / "examples" / "tiny_lm" / "model.yaml"


def measure(command: list[str]) -> tuple[float, float]:
    """Runs a command and returns the CPU and wall seconds of it and its children."""
    start, before = time.monotonic(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.monotonic() - start


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each (default: 5)")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as scratch:
        plain, ours = Path(scratch) / "plain", Path(scratch) / "etbuild"
        commands = {
            "plain script": [sys.executable, str(HERE / "plain.py"), str(plain)],
            "etbuild build": [sys.executable, "-m", "etbuild", "build", str(MANIFEST), "--no-cache", "-o", str(ours)],
        }
        times = [{name: measure(command) for name, command in commands.items()} for _ in range(runs + 1)][1:]
        if not filecmp.cmp(plain / "tiny_lm.pte", ours / "tiny_lm.pte", shallow=False):
            sys.exit("the two programs are not the same")
    print(f"{'':15}  user+sys s    wall s   (medians of {runs})")
    for name in commands:
        cpu, wall = (statistics.median(run[name][i] for run in times) for i in (0, 1))
        print(f"{name:15}  {cpu:10.2f}  {wall:8.2f}")
    ratios = [[run["etbuild build"][i] / run["plain script"][i] for run in times] for i in (0, 1)]
    print(f"{'ratio':15}  {statistics.median(ratios[0]):10.3f}  {statistics.median(ratios[1]):8.3f}   (pairs: "
          f"{min(ratios[0]):.3f} to {max(ratios[0]):.3f} user+sys); same bytes")  # fmt: skip


if __name__ == "__main__":
    main()
