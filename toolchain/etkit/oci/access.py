"""How to reach a registry. This module needs no extra, unlike `registry`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Access:
    """How to reach a registry.

    Attributes:
        plain_http: Whether to do without TLS for a registry that is not on this machine.
        ca_file: The certificates of the authorities to trust. With it, a registry on this machine has TLS too.
        stall_seconds: How long to wait for a registry that sends nothing, or less than 1 kB in a second.
    """

    plain_http: bool = False
    ca_file: Path | None = None
    stall_seconds: float = 60.0
