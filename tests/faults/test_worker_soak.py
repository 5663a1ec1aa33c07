"""One worker, hundreds of requests: some fail, some are cancelled, and none leaves anything behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.worker_client import Worker

from .projects import artifacts, build, write_project

REQUESTS, AT_ONCE, FAILING, CANCELLED = 500, 4, 0.1, 0.04
WIDTHS = (4, 5, 6, 7)
SETTLED = 50  # after so many requests, the worker has the size that it keeps


@dataclass(frozen=True)
class Asked:
    """One request, in a directory of its own."""

    width: int
    out: Path
    fails: bool
    cancelled: bool


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    started = Worker(tmp_path)
    yield started
    started.end()


def resident_bytes(pid: int) -> int:
    """What a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def send(worker: Worker, number: int, asked: Asked, manifest: Path) -> None:
    """Sends a request; one that is to be cancelled is cancelled at once, in whatever state it is by then."""
    options = ["--data", "nonsense"] if asked.fails else []
    worker.send("build", manifest, "--no-cache", "-o", asked.out, *options, request_id=number)
    if asked.cancelled:
        worker.send(request_id=number, cancel=True)


def check(response: object, asked: Asked, reference: dict[str, bytes]) -> None:
    made = artifacts(asked.out)
    code, output = response.exit_code, response.output  # type: ignore[attr-defined]
    if response.was_cancelled:  # type: ignore[attr-defined]
        assert asked.cancelled
        assert made.items() <= reference.items()
    elif asked.fails:
        assert (code, made) == (2, {})
        assert "expected NAME=FILE" in output
    else:
        assert code == 0, output
        assert made == reference
    assert not list(asked.out.glob(".etbuild-*"))


def test_five_hundred_requests(worker: Worker, tmp_path: Path) -> None:
    manifests = {width: write_project(tmp_path / "in", width) for width in WIDTHS}
    references = {width: build(path, tmp_path / f"reference{width}", "--no-cache") for width, path in manifests.items()}
    chance = random.Random(13)
    asked: dict[int, Asked] = {}
    answered, sizes = 0, {}
    while answered < REQUESTS:
        while len(asked) < AT_ONCE and answered + len(asked) < REQUESTS:
            number = answered + len(asked) + 1
            while number in asked:
                number += 1
            one = Asked(
                chance.choice(WIDTHS), tmp_path / f"out{number}", chance.random() < FAILING, chance.random() < CANCELLED
            )
            asked[number] = one
            send(worker, number, one, manifests[one.width])
        response = worker.receive()
        done = asked.pop(response.request_id)
        check(response, done, references[done.width])
        answered += 1
        if answered in (SETTLED, REQUESTS):
            sizes[answered] = resident_bytes(worker.process.pid)
    assert sizes[REQUESTS] < sizes[SETTLED] * 1.05
    assert worker.children() == []
    assert worker.close() == 0
