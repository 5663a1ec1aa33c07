"""Kills builds and makes their uses of files fail, for a given time, and prints the result as JSON.

python -m tests.faults.run_campaign --kills 40 --faults 40 --seconds 600
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from pathlib import Path

from .campaign import ERRORS, MODES, SIGNALS, Campaign, ServedCampaign, dump, joined, places

_WITH_SERVER = itertools.cycle((False, True))  # every other build that lowers forks from a warm process
_ORDER = ("hit", "cold", "hit", "hit", "joint", "hit")  # a hit is short, and the driver itself takes most of its time


def main() -> int:
    """Runs the campaign. The exit code is 1 if it found a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="builds to kill")
    parser.add_argument("--faults", type=int, default=40, help="builds in which one use of a file fails")
    parser.add_argument("--seconds", type=float, default=600, help="when to stop in any case")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # A shell lets its commands in the background ignore this signal, and builds would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(prefix="w") as place:
        for directory in ("own", "served"):
            Path(name, directory).mkdir()
        campaign = Campaign(Path(name, "own"), options.seed)
        served = ServedCampaign(Path(name, "served"), options.seed, Path(place))
        uses = {mode: campaign.inject(mode, 0, ERRORS[0]) for mode in MODES}
        campaign.counts.clear()  # no fault was injected so far
        ways = itertools.cycle(itertools.product(_ORDER, SIGNALS))
        kinds = itertools.cycle(itertools.product(_ORDER, ERRORS))
        kills, faults = options.kills, options.faults
        while (kills or faults) and time.monotonic() < until:
            if kills:
                mode, number = next(ways)
                (served if mode != "hit" and next(_WITH_SERVER) else campaign).kill(mode, number)
                kills -= 1
            if faults:
                mode, error = next(kinds)
                campaign.inject(mode, campaign.chance.choice(places(uses[mode], error)), error)
                faults -= 1
        served.stop()
        result = joined(each.result() for each in (campaign, served))
    print(dump(result))
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
