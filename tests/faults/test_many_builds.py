"""One cache, very many builds at once, and some of them killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from etbuild.cache.store import Cache

from .projects import artifacts, build, command, write_project

AT_ONCE, BUILDS, KILLED = 64, 200, 0.2
WIDTHS = (4, 5, 6, 7)


@dataclass
class Running:
    """One build, in a directory of its own."""

    width: int
    out: Path
    process: subprocess.Popen[str]
    killed_at: float | None
    started: float = field(default_factory=time.monotonic)

    def doomed(self) -> bool:
        return self.killed_at is not None and time.monotonic() - self.started > self.killed_at


def finished(running: Running, reference: dict[str, bytes]) -> bool:
    """Looks at a build that has ended: whether it ended well. What it published is right, whole or not there."""
    _, said = running.process.communicate()
    made = artifacts(running.out)
    if running.process.returncode == 0:
        assert made == reference, said
        return True
    assert running.process.returncode == -signal.SIGKILL, said
    assert made.items() <= reference.items()
    return False


def test_two_hundred_builds_sixty_four_at_once(tmp_path: Path) -> None:
    manifests = {width: write_project(tmp_path / "in", width) for width in WIDTHS}
    references = {width: build(path, tmp_path / f"reference{width}", "--no-cache") for width, path in manifests.items()}
    cache = ["--cache-dir", str(tmp_path / "cache")]
    chance = random.Random(7)
    waiting = [chance.choice(WIDTHS) for _ in range(BUILDS)]
    running: list[Running] = []
    ended = {True: 0, False: 0}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            width, out = waiting.pop(), tmp_path / f"out{len(waiting)}"
            process = subprocess.Popen(
                command(manifests[width], out, *cache), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            # Most of a build from the cache, and some moment of one that lowers.
            killed_at = chance.choice([0.1, 0.5, 2.0, 5.0, 9.0]) * chance.random() if chance.random() < KILLED else None
            running.append(Running(width, out, process, killed_at))
        for one in list(running):
            if one.process.poll() is None and one.doomed():
                one.process.kill()
            if one.process.poll() is not None:
                running.remove(one)
                ended[finished(one, references[one.width])] += 1
        time.sleep(0.01)
    assert ended[True] + ended[False] == BUILDS
    assert ended[True] > BUILDS / 2
    assert ended[False] > 0
    assert Cache(tmp_path / "cache").verify() == []
    for width, manifest in manifests.items():  # no entry was lost
        out = tmp_path / f"again{width}"
        done = subprocess.run(command(manifest, out, *cache), capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["steps"] == {"program": "cached"}
        assert artifacts(out) == references[width]
