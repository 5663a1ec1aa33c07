"""How hard a build tries to be fast. What it gives is the same."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Effort:
    """How a lowering runs.

    Attributes:
        accelerate: With the switches of `accelerate`, and several methods one by one where that gives the same.
        jobs: How many methods are lowered at the same time.
    """

    accelerate: bool = True
    jobs: int = field(default_factory=processors)
