"""A task of transformers, as a plug-in provides it."""

from __future__ import annotations

import pytest

from etbuild import plugins
from etplugins.transformers.tasks import ONE_CALL, Task, of_image

NAME, CLASS = "relative-depth", "AutoModelForDepthEstimation"
TASK = Task(CLASS, None, ONE_CALL, of_image, takes="image", outputs=("predicted_depth",))
PLUGIN = plugins.Plugin(
    "etplugins.depth", "Depth of images.", {"task": {NAME: f"{__name__}:TASK"}}, ("etplugins.transformers",)
)


def provide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the registry have the plug-in."""
    monkeypatch.setitem(plugins._given, PLUGIN.package, plugins.plugins()["etplugins.transformers"].directory)
    of_files = plugins.group
    monkeypatch.setattr(plugins, "group", lambda name: {**of_files(name), **({NAME: PLUGIN} if name == "task" else {})})
