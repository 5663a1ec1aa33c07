"""Runs real builds that are killed or meet a fault, and checks the result.

After every fault, the build reports it, no artifact is wrong or cut off, an index exists only with the files that it
lists, the next build gives the right bytes, and no other files are left.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild.surroundings.environment import FIXED
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache
from etkit.warm import client
from tests.helpers.worker_client import WAIT_SECONDS, alive, descendants, wait_until

from . import injected
from .projects import MODEL, artifacts

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", kwargs: {width: 4}}
defaults: {partitioners: [xnnpack]}
methods:
  forward: {example_inputs: [{shape: [1, 8]}]}
  several: {entry: forward, example_inputs: [{shape: [3, 8]}]}
named_data: {weights: {parameters: ["*"], shard_size: 200}}
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ENOLCK)
MODES = {"cold": ["--jobs", "2"], "joint": ["--jobs", "1", "--no-cache"], "hit": []}
_STARTED = re.compile(rb"\r\x1b\[K  [^\r\n]+ \.\.\.")
_INJECT = """\
import sys
here, place, error, root = settings = sys.argv[1:5]
sys.path.append(here)
from etbuild.surroundings import environment
from etbuild.__main__ import main
from tests.faults import injected
program = sys.orig_argv[sys.orig_argv.index("-c") + 1]
environment.command = lambda arguments: [sys.executable, "-c", program, *settings, *arguments]  # what builds, too
sys.argv[1:] = sys.argv[5:]
injected.install(int(place), injected.fail(int(error)), injected.log(root), root)
sys.exit(main())
"""


@dataclass(frozen=True)
class Ended:
    """A build that has ended.

    Attributes:
        code: Its exit code, or the negative number of a signal.
        said: Its standard error.
        stages: The number of stages that it began, and when the signal was sent, if there was one.
    """

    code: int
    said: str
    stages: int


def published(out: Path) -> dict[str, bytes]:
    """Returns the files in an output directory that have names of artifacts."""
    shards = {f"net.weights/{name}": content for name, content in artifacts(out / "net.weights").items()}
    return {**artifacts(out), **shards}


def places(uses: list[str], error: int) -> list[int]:
    """Returns the numbers of the uses in which the system may return this error."""
    locks_alone = error == errno.ENOLCK
    return [number for number, use in enumerate(uses, 1) if not locks_alone or use.startswith("fcntl.flock")]


class Campaign:
    """Runs builds of one program into one directory, with one cache and one directory for temporary files.

    Args:
        root: An empty directory.
        seed: The random seed for where and when faults happen.
    """

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.unclear: list[str] = []
        self.out, self.cache, self.tmp = root / "out", root / "cache", root / "tmp"
        for place in (self.out, self.cache, self.tmp, root / "in"):
            place.mkdir()
        (root / "in/model.py").write_text(MODEL)
        self.manifest = root / "in/net.yaml"
        self.manifest.write_text(MANIFEST)
        self.right: dict[str, bytes] = {}
        ended = self.run(["--jobs", "2"])
        assert ended.code == 0, ended.said
        self.right = published(self.out)
        self.filled = root / "filled"
        shutil.copytree(self.cache, self.filled)

    def run(self, options: list[str], kill_at: tuple[int, float, Callable[[int], None]] | None = None) -> Ended:
        """Builds with a terminal as standard error, which shows when stages begin.

        Args:
            options: The options of the build.
            kill_at: The number of a stage, seconds after its begin, and what sends a signal then. It takes the number
                of the build's process, which leads a process group.
        """
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "etbuild", "build", *self.arguments(options)],
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        said, stages, pending = b"", 0, kill_at
        with contextlib.suppress(OSError):  # EIO: no process has the terminal open any more
            while block := os.read(ours, 4096):
                said += block
                stages = len(_STARTED.findall(said))
                if pending is not None and stages >= pending[0]:
                    time.sleep(pending[1])
                    with contextlib.suppress(ProcessLookupError):
                        pending[2](process.pid)
                    pending = None
        os.close(ours)
        return Ended(process.wait(), said.decode(errors="replace"), stages)

    def arguments(self, options: list[str]) -> list[str]:
        """Of a build."""
        cache = [] if "--no-cache" in options else ["--cache-dir", str(self.cache)]
        return [str(self.manifest), "-o", str(self.out), *cache, *options]

    def environment(self) -> dict[str, str]:
        """Of a build."""
        return {**os.environ, **FIXED, "NO_COLOR": "1", "TMPDIR": str(self.tmp)}

    def prepare(self, mode: str) -> None:
        """Prepares the output directory, empty or with an earlier build, and the cache, empty or with the program."""
        shutil.rmtree(self.cache)
        if mode == "hit":
            shutil.copytree(self.filled, self.cache)
        else:
            self.cache.mkdir()
        if self.chance.random() < 0.5:
            shutil.rmtree(self.out)
            self.out.mkdir()

    def kill(self, mode: str, number: signal.Signals, stages: int = 12) -> None:
        """Kills a build at a random moment of a stage, and checks the files that are left."""
        self.prepare(mode)
        stage = 1 if mode == "hit" else self.chance.randint(1, stages)
        delay = self.chance.random() * (0.05 if mode == "hit" else 1.0)
        whom, send = self.target(number)
        ended = self.run(MODES[mode], (stage, delay, send))
        self.counts["kills"] += 1
        self.counts[f"killed by {number.name}"] += ended.code != 0
        if not self.is_clear(ended) or "Traceback" in ended.said:
            self._note("unclear errors", f"{mode} {number.name} {whom} {stage} {delay}: {ended.code} {ended.said}")
        self.look(mode, f"{number.name} of {whom} in stage {stage}")

    def target(self, number: signal.Signals) -> tuple[str, Callable[[int], None]]:
        """Chooses what gets a signal: the build's process, or all processes of its group, as from a terminal. Returns
        it in words, and what sends the signal."""
        whom, send = ("the group", os.killpg) if self.chance.random() < 0.5 else ("the build", os.kill)
        return whom, lambda pid: send(pid, number)

    def is_clear(self, ended: Ended) -> bool:
        """Whether a build that got a signal has ended as it should."""
        stopped = ended.code == 130 and "etbuild: interrupted" in ended.said
        return ended.code in (0, -signal.SIGKILL) or stopped

    def inject(self, mode: str, place: int, error: int) -> list[str]:
        """Makes one use of a file fail during a build, and checks the files that are left.

        Args:
            mode: The mode of the build.
            place: The number of the use, from 1, counted over all processes of the build. 0: nothing fails.
            error: The system's error number.

        Returns:
            The uses, each with its file.
        """
        self.prepare(mode)
        (self.root / injected.LOG).unlink(missing_ok=True)
        here = str(Path(__file__).parents[2])
        command = [sys.executable, "-c", _INJECT, here, str(place), str(error), str(self.root), "build"]
        done = subprocess.run(
            [*command, *self.arguments(MODES[mode])], env=self.environment(), capture_output=True, text=True
        )
        self.counts["faults injected"] += 1
        self.counts["faults survived"] += done.returncode == 0
        if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
            self._note("unclear errors", f"{mode} {errno.errorcode[error]} {place}: {done.returncode} {done.stderr}")
        if done.returncode == 0 and published(self.out) != self.right:
            self._note("wrong artifacts", f"{mode} {errno.errorcode[error]} {place}: exit code 0")
        if mode == "hit" and not self._holds_all():
            self._note("lost entries", f"{mode} {errno.errorcode[error]} {place}: {done.stderr}")
        self.look(mode, f"{errno.errorcode[error]} at {place}")
        return injected.uses((self.root / injected.LOG).read_bytes())

    def _holds_all(self) -> bool:
        kept = {path.relative_to(self.filled) for path in self.filled.rglob("*") if path.is_file()}
        return all((self.cache / path).exists() for path in kept if path.parts[0] in ("blobs", "records"))

    def look(self, mode: str, what: str) -> None:
        """Checks that the artifacts are right, that the next build gives the right bytes, and that no other files are
        left."""
        found = published(self.out)
        if not found.items() <= self.right.items():
            self._note(
                "wrong artifacts", f"{mode} {what}: {sorted(set(found.items()) - set(self.right.items()))}"[:2000]
            )
        if "net.index.json" in found and found != self.right:
            self._note("wrong artifacts", f"{mode} {what}: an index without its files")
        ended = self.run(MODES[mode])
        if ended.code != 0 or published(self.out) != self.right:
            self._note("wrong artifacts", f"{mode} {what}: the next build: {ended.said}")
        if mode != "joint" and cache_upkeep.verify(Cache(self.cache, lambda line: None)):
            self._note("damaged entries", f"{mode} {what}")
        left = [*self.out.glob(".*"), *(self.cache / "tmp").glob("*"), *self.tmp.glob("etbuild-*")]
        if left:
            self._note("leftovers", f"{mode} {what}: {[str(path.relative_to(self.root)) for path in left]}")

    def _note(self, kind: str, line: str) -> None:
        self.counts[kind] += 1
        self.unclear.append(f"{kind}: {line}")

    def result(self) -> dict[str, Any]:
        """Returns the counts, including those that must be 0, and the findings."""
        none = dict.fromkeys(("wrong artifacts", "unclear errors", "lost entries", "damaged entries", "leftovers"), 0)
        return {**none, **self.counts, "findings": self.unclear}


class ServedCampaign(Campaign):
    """Runs builds that fork from a warm process. A signal may also reach that process, or the fork.

    Args:
        root: An empty directory.
        seed: The random seed for where and when faults happen.
        place: An empty directory with a short path, for sockets.
    """

    def __init__(self, root: Path, seed: int, place: Path) -> None:
        self.place = place
        self.forks: list[int] = []
        super().__init__(root, seed)

    def environment(self) -> dict[str, str]:
        """Of a build."""
        kept = {name: value for name, value in super().environment().items() if name not in ("CI", client.OFF)}
        return {**kept, "ETBUILD_SERVER_DIR": str(self.place)}

    def target(self, number: signal.Signals) -> tuple[str, Callable[[int], None]]:
        """Chooses what gets a signal, as in the base class; or the warm process, or its fork."""
        server = self.server()
        if self.chance.random() < 0.5:
            whom, send = super().target(number)
        else:
            whom = self.chance.choice(("the warm process", "the fork"))

            def send(pid: int) -> None:
                del pid
                os.kill(server if whom == "the warm process" else next(iter(descendants(server)), server), number)

        def noted(pid: int) -> None:
            self.forks = descendants(server)
            self.counts["kills with a fork"] += bool(self.forks)
            send(pid)

        return whom, noted

    def is_clear(self, ended: Ended) -> bool:
        """Whether a build that got a signal has ended as it should: its fork may have got it."""
        return super().is_clear(ended) or (ended.code == 1 and "the build ended with SIG" in ended.said)

    def look(self, mode: str, what: str) -> None:
        """Checks also that no process of the build is left."""
        try:
            wait_until(lambda: not any(map(alive, self.forks)))
        except AssertionError:
            self._note("leftovers", f"{mode} {what}: processes {[each for each in self.forks if alive(each)]}")
        super().look(mode, what)

    def server(self) -> int:
        """The number of the warm process, which the last build may still be starting."""
        found: list[int] = []

        def asked() -> bool:
            answers = [client.ask(path, {}) for path in self.place.glob("*/*.socket")]
            found[:] = [answer["pid"] for answer in answers if answer is not None and "pid" in answer]
            return bool(found)

        if not asked():
            self.run(["--no-cache"])  # leaves one
        wait_until(asked, WAIT_SECONDS)
        return found[0]

    def stop(self) -> None:
        """Ends the warm process."""
        for path in self.place.glob("*/*.socket"):
            client.ask(path, {"stop": True})


def joined(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sums of the counts of campaigns, and all findings."""
    counts, findings = Counter[str](), list[str]()
    for result in results:
        findings += result["findings"]
        counts.update({name: count for name, count in result.items() if name != "findings"})
    return {**counts, "findings": findings}


def dump(result: dict[str, Any]) -> str:
    """Formats the result as indented JSON."""
    return json.dumps(result, indent=2)
