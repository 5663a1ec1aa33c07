"""How well a program agrees with PyTorch, as the comparison of a build has measured it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

Agreement = dict[str, tuple[float | None, int]]
"""For each compared method, the worst ratio of signal to error in decibels, None if nothing differs, and the number of
calls."""


def read_agreement(path: Path) -> Agreement:
    """Reads the figures of a comparison. Empty if there are none, or none that make sense."""
    try:
        found = json.loads(path.read_bytes())
        return {
            str(name): (None if worst is None else float(worst), int(calls)) for name, (worst, calls) in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def decibels(agreement: Agreement) -> float | None:
    """The worst ratio of all methods; infinite if nothing differs, None if nothing was compared."""
    return min((math.inf if worst is None else worst for worst, _ in agreement.values()), default=None)


def shown(agreement: Agreement) -> str:
    """The figures for people, such as `144 dB, 12 calls`. Empty if nothing was compared."""
    worst = decibels(agreement)
    if worst is None:
        return ""
    calls = sum(count for _, count in agreement.values())
    return f"{ratio(worst)}, {calls} call{'s' if calls != 1 else ''}"


def ratio(worst: float) -> str:
    """A ratio for people."""
    return "exact" if worst == math.inf else f"{worst:.0f} dB"


def to_json(agreement: Mapping[str, tuple[float | None, int]]) -> dict[str, dict[str, float | int | None]]:
    """The figures as JSON data."""
    return {name: {"decibels": worst, "calls": calls} for name, (worst, calls) in agreement.items()}
