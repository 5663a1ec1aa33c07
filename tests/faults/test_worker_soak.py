"""One worker or warm process, and many requests. Some fail, some are cancelled, and none leaves anything behind.

`make test` sends 60 requests, `make test-all` also 500.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import commands
from tests.helpers.warm_process import WarmProcess
from tests.helpers.worker_client import Worker

from .projects import MODEL, write_project

AT_ONCE, CANCELLED = 4, 0.05
WIDTHS = (4, 7)
KINDS = {Worker: {"export": 0.7, "build": 0.2, "failing": 0.1}, WarmProcess: {"build": 0.9, "wrong": 0.1}}
SETTLED = 30  # after this many requests, the worker's memory no longer grows


class Project:
    """Programs to export and to build, and one whose factory fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifests = {width: write_project(root / "in", width) for width in WIDTHS}
        (root / "failing.py").write_text(MODEL.replace("torch.manual_seed(1)", "raise ValueError(width)"))
        self.wrong = write_project(root / "wrong", WIDTHS[0])
        (root / "wrong/model.py").write_text((root / "failing.py").read_text())
        for width, manifest in self.manifests.items():
            plans = [f"--{part}={root / f'{width}.{part}'}" for part in ("plan", "export-plan", "lower-plan")]
            ask("plan", str(manifest), *plans)
        self.right = {(kind, width): self.run(kind, width) for kind in ("export", "build") for width in WIDTHS}

    def run(self, kind: str, width: int) -> dict[str, bytes]:
        """Runs the command in another worker, and returns the files that it makes."""
        out = self.root / f"reference_{kind}{width}"
        ask(*self.arguments(kind, width, out))
        return files(out)

    def arguments(self, kind: str, width: int, out: Path) -> list[str]:
        """Returns the arguments of the command."""
        if kind == "wrong":
            return ["build", str(self.wrong), "--no-cache", "-o", str(out / "artifacts")]
        if kind == "build":
            return ["build", str(self.manifests[width]), "--no-cache", "-o", str(out / "artifacts")]
        source = self.root / ("failing.py" if kind == "failing" else "in/model.py")
        plan = str(self.root / f"{width}.export-plan")
        return ["export", plan, f"--source=model.py={source}", f"--inputs={out / 'inputs'}", "-o", str(out / "export")]


@dataclass(frozen=True)
class Asked:
    """One request in its own directory."""

    kind: str
    width: int
    out: Path


def ask(*arguments: str) -> None:
    """Has a request answered by the worker of all tests, whose results `tests/integration/test_worker.py` checks."""
    answer = commands.worker().ask(*arguments)
    assert answer.exit_code == 0, answer.output


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.fixture(params=[Worker, WarmProcess])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker | WarmProcess]:
    started = request.param(tmp_path)
    yield started
    started.end()


def check(response: Any, asked: Asked, project: Project) -> None:
    """Checks that a request made its expected files or none; a cancelled one may have made some of them, each
    complete."""
    made = files(asked.out)
    if asked.kind in ("failing", "wrong"):
        assert made == {}
        assert response.was_cancelled or (response.exit_code == 1 and "ValueError" in response.output), response.output
        return
    right = project.right[asked.kind, asked.width]
    if response.was_cancelled:
        assert made.items() <= right.items()
    else:
        assert response.exit_code == 0, response.output
        assert made == right


@pytest.mark.parametrize("requests", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_a_worker_keeps_its_size_and_its_results_over_many_requests(
    worker: Worker | WarmProcess, tmp_path: Path, requests: int
) -> None:
    project, kinds = Project(tmp_path), KINDS[type(worker)]
    chance = random.Random(13)
    waiting = list(range(1, requests + 1))
    asked: dict[int, Asked] = {}
    sizes: list[int] = []
    cancelled = 0
    while waiting or asked:
        while waiting and len(asked) < AT_ONCE:
            number = waiting.pop()
            (kind,) = chance.choices(list(kinds), list(kinds.values()))
            one = asked[number] = Asked(kind, chance.choice(WIDTHS), tmp_path / f"out{number}")
            worker.send(*project.arguments(one.kind, one.width, one.out), request_id=number)
        if chance.random() < CANCELLED:
            worker.send(request_id=chance.choice(list(asked)), cancel=True)
        response = worker.receive()
        check(response, asked.pop(response.request_id), project)
        cancelled += response.was_cancelled
        sizes.append(resident_bytes(worker.process.pid))
    assert cancelled > requests * CANCELLED / 4
    assert sizes[-1] < sizes[SETTLED] * 1.05
    assert worker.children() == []
    assert worker.close() == 0
