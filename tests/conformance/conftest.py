"""Projects whose methods go to the demo backends, and the calls that the backends recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import HEAD
from tests.integration.conftest import Build, Outcome
from tests.integration.conftest import build as build  # noqa: PLC0414 - the fixture

BACKEND = (Path(__file__).parent / "demo_backend.py").read_text("utf-8")

Lower = Callable[..., tuple[Outcome, list[dict[str, Any]]]]


def take(operators: str, backend: str, spec: str = "") -> str:
    """Returns a partitioner entry for the demo partitioner, which takes some operators for a backend."""
    kwargs = f"{{operators: [{operators}], backend: {backend}" + (f", spec: {spec}}}" if spec else "}")
    return f'{{backend: custom, options: {{factory: "demo_backend:take", kwargs: {kwargs}}}}}'


@pytest.fixture
def lower(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lower:
    """Builds a model with the end of a manifest (from `methods` on). Also returns the recorded calls."""

    def run(tail: str, model: str, *options: str, **sources: str) -> tuple[Outcome, list[dict[str, Any]]]:
        record = tmp_path / "calls"
        record.write_text("")
        monkeypatch.setenv("DEMO_BACKEND_RECORD", str(record))
        outcome = build(HEAD + tail, *options, model=model, demo_backend=BACKEND, **sources)
        return outcome, [json.loads(line) for line in record.read_text().splitlines()]

    return run
