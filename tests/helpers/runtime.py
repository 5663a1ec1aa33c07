"""Runs programs in ExecuTorch's runtime for tests."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]

Call = tuple[str, list[torch.Tensor]]
"""A method and its inputs."""


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.run_sessions"],
        cwd=REPOSITORY,
        # OpenVINO cannot load here what it has compiled for more instructions than this allows.
        env={name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(_end, server, os.getpid())
    return server


def _end(server: subprocess.Popen[str], owner: int) -> None:
    """Ends the server, which reads the end of its input. In a fork of the owner it would wait forever."""
    if os.getpid() == owner:
        server.communicate()


def run(program: Path, sessions: list[list[Call]], scratch: Path) -> list[list[list[torch.Tensor]]]:
    """Runs a program in a process without state of other programs.

    Args:
        program: The `.pte`, with its index and its `.ptd` files beside it.
        sessions: The calls of each session. The program keeps its state only within a session.
        scratch: A directory for files that the caller does not need.

    Returns:
        The outputs of each call of each session.
    """
    places = [program, *(scratch / name for name in ("sessions.pt", "outputs.pt", "messages"))]
    torch.save(sessions, places[1])
    server = _server()
    assert server.stdin
    assert server.stdout
    server.stdin.write(json.dumps([str(place.absolute()) for place in places]) + "\n")
    server.stdin.flush()
    code = server.stdout.readline().strip()
    assert code == "0", (code, places[3].read_text("utf-8", errors="replace") if places[3].exists() else "")
    results: list[list[list[torch.Tensor]]] = torch.load(places[2])
    return results
