"""Checks `checks.compare` of a manifest."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import Problem, unknown
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest


class CompareSection(Section):
    """How a build compares the results of the program."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields a problem for each method that does not exist."""
        settings = manifest.get("checks", {})["compare"].get("methods", {})
        for name, hint in unknown(settings, manifest.get("methods", {})):
            yield Problem(f"there is no method `{name}`", ("checks", "compare", "methods", name), hint, at_key=True)
