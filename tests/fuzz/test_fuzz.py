"""Runs every target for a short time, always with the same inputs. `run.py` continues where this ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from etplugins import lora

from .seeds import seeds
from .strategies import documents, mutated_bytes, mutated_trees
from .targets import TARGETS

SCHEMAS: dict[str, list[str | Path]] = {
    "manifest": ["model"],
    "plan": ["plan#plan", "plan#exportPlan", "plan#lowerPlan", "plan#methodPlan"],
    "positions": ["plan#positions"],
    "lines": ["step#lines"],
    "index": ["index"],
    "report": ["report"],
    "lock": ["lock"],
    "lowering": ["step#lowering"],
    "export": ["step#export"],
    "lowered_method": ["step#loweredMethod"],
    "adapter_config": [Path(lora.__file__).with_name("adapter-config.schema.json")],
}
EXAMPLES = {"manifest": 250, "pte": 40, "ptd": 40}
SECONDS = 20  # limit for one input: a hundred times what it should take on the slowest machine


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def inputs(target: str) -> st.SearchStrategy[bytes]:
    """Draws the bytes to call a target with."""
    sound = seeds(target) or [b"{}"]
    drawn: list[st.SearchStrategy[bytes]] = [documents(name) for name in SCHEMAS.get(target, ())]
    trees = [data for data in sound if is_json(data)]
    if trees:
        drawn.append(mutated_trees(trees))
    return st.one_of(*drawn, mutated_bytes(sound))


def is_json(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), (dict, list))
    except ValueError:
        return False


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target: str) -> None:
    for data in [b"", b"\0", b"{}", b"[]", *seeds(target)]:
        with no_longer_than(SECONDS):
            TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_drawn_inputs(target: str) -> None:
    @settings(
        max_examples=EXAMPLES.get(target, 80),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(target))
    def run(data: bytes) -> None:
        with no_longer_than(SECONDS):
            TARGETS[target](data)

    run()
