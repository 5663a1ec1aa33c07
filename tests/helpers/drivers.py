"""The drivers of actions: the files that the build rules give to each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"


def rules() -> dict[str, Any]:
    """The names of `steps.bzl` and of the table."""
    names: dict[str, Any] = {"load": lambda *each: None}
    for file in ("etbuild/step_packages.bzl", "steps.bzl"):
        exec((TOOLCHAIN / file).read_text("utf-8"), names)
    return names


def driver_of_action(step: str) -> set[str]:
    """The files of the driver that the actions of a step run."""
    patterns = (*(f"et*/**/*.{kind}" for kind in ("py", "json", "bzl")), "etbuild/schemas/*.json")
    files = {path.relative_to(TOOLCHAIN).as_posix() for pattern in patterns for path in TOOLCHAIN.glob(pattern)}
    return set(rules()["files_of_step"](sorted(files), step))
