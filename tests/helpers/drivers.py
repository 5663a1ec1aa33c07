"""The drivers of actions: the files that the build rules give to each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"


def rules() -> dict[str, Any]:
    """The names of `steps.bzl` and of the table."""
    names: dict[str, Any] = {"load": lambda *each: None, "struct": dict}
    for file in ("../rules/private/facts.bzl", "etbuild/step_packages.bzl", "steps.bzl"):
        exec((TOOLCHAIN / file).read_text("utf-8"), names)
    return names


def driver_of_action(step: str) -> set[str]:
    """The files of the driver that the actions of a step run, without plug-ins that a target names."""
    return set(rules()["files_of_step"](_files(), step))


def plugin_of_action(name: str) -> set[str]:
    """The files of a plug-in that a target names."""
    return set(rules()["files_of_plugin"](_files(), name))


def _files() -> list[str]:
    patterns = (*(f"et*/**/*.{kind}" for kind in ("py", "json", "bzl")), "etbuild/schemas/*.json")
    return sorted({path.relative_to(TOOLCHAIN).as_posix() for pattern in patterns for path in TOOLCHAIN.glob(pattern)})
