"""How much of the machine a build uses. The result is always the same."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LoweringOptions:
    """How lowering runs.

    Attributes:
        accelerate: Use the switches of `etplugins.accelerate`, and lower several methods one by one if that gives the
            same result.
        jobs: The number of methods that are lowered at the same time.
    """

    accelerate: bool = True
    jobs: int = field(default_factory=processors)
