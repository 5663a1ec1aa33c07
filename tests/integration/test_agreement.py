"""A build says how near its program is to PyTorch, also if it comes from the cache."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import torch

from etplugins.comparison import accuracy

from .conftest import MANIFEST, Build


def test_a_build_ends_with_its_agreement(build: Build, tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    first = build(MANIFEST, *cache)
    [said] = re.findall(r"^compared with PyTorch: (\d+ dB|exact), (\d+) calls$", first.out, re.MULTILINE)
    assert int(said[1]) > 1
    again = build(MANIFEST, *cache)
    assert "from the cache: program" in again.out
    assert f"compared with PyTorch: {said[0]}, {said[1]} calls" in again.out


def test_it_is_in_the_json(build: Build) -> None:
    found = json.loads(build(MANIFEST, "--json").out)["agreement"]["forward"]
    assert found["calls"] > 1
    assert found["decibels"] is None or found["decibels"] > 80


def test_a_method_that_is_not_compared_has_none(build: Build) -> None:
    left_out = f"{MANIFEST}checks: {{compare: {{leave_out: an application has its kernels}}}}\n"
    made = build(left_out)
    assert made.code == 0, made.err
    assert "compared with PyTorch:" not in made.out


def test_outputs_without_a_signal_have_no_ratio() -> None:
    zeros, ones = torch.zeros(3), torch.ones(3)
    assert accuracy.worst_ratio([zeros + 1e-9, ones], [zeros, ones]) == math.inf
    assert accuracy.worst_ratio([ones * 1.001, None], [ones, None]) == accuracy.sqnr(ones * 1.001, ones)
    assert accuracy.worst_ratio([], []) == math.inf
