"""Many builds at once with one cache. Some of the builds are killed.

`make test` runs 24 builds, 12 at once; `make test-all` also runs 200, 64 at once.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

from .projects import artifacts, build, command, write_project

KILLED = 0.2


@dataclass
class Running:
    """One build in its own directory."""

    width: int
    out: Path
    process: subprocess.Popen[str]
    killed_at: float | None
    started: float = field(default_factory=time.monotonic)

    def doomed(self) -> bool:
        return self.killed_at is not None and time.monotonic() - self.started > self.killed_at


def finished(running: Running, reference: dict[str, bytes]) -> bool:
    """Checks that the artifacts of a finished build are complete and right, or missing. Returns whether it
    succeeded."""
    _, said = running.process.communicate()
    made = artifacts(running.out)
    if running.process.returncode == 0:
        assert made == reference, said
        return True
    assert running.process.returncode == -signal.SIGKILL, said
    assert made.items() <= reference.items()
    return False


@pytest.mark.parametrize(
    ("builds", "at_once", "programs"), [(24, 12, 2), pytest.param(200, 64, 4, marks=pytest.mark.soak)]
)
def test_builds_that_share_a_cache_publish_the_right_bytes_or_nothing(
    tmp_path: Path, builds: int, at_once: int, programs: int
) -> None:
    widths = range(4, 4 + programs)
    manifests = {width: write_project(tmp_path / "in", width) for width in widths}
    references = {width: build(path, tmp_path / f"reference{width}") for width, path in manifests.items()}
    cache = ["--cache-dir", str(tmp_path / "cache")]
    chance = random.Random(7)
    waiting = [chance.choice(widths) for _ in range(builds)]
    running: list[Running] = []
    ended = {True: 0, False: 0}
    while waiting or running:
        while waiting and len(running) < at_once:
            width, out = waiting.pop(), tmp_path / f"out{len(waiting)}"
            process = subprocess.Popen(
                command(manifests[width], out, *cache), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            # A range that covers most of a build from the cache, and a moment of a build that lowers.
            killed_at = chance.choice([0.1, 0.5, 2.0, 5.0, 9.0]) * chance.random() if chance.random() < KILLED else None
            running.append(Running(width, out, process, killed_at))
        for one in list(running):
            if one.process.poll() is None and one.doomed():
                one.process.kill()
            if one.process.poll() is not None:
                running.remove(one)
                ended[finished(one, references[one.width])] += 1
        time.sleep(0.01)
    assert ended[True] + ended[False] == builds
    assert ended[True] > builds / 2
    assert ended[False] > 0
    assert cache_upkeep.verify(Cache(tmp_path / "cache")) == []
    for width, manifest in manifests.items():  # no entry was lost
        out = tmp_path / f"again{width}"
        done = subprocess.run(command(manifest, out, *cache), capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["steps"] == {"program": "cached"}
        assert artifacts(out) == references[width]
