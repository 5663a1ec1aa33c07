"""Checks `checks.vela` of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etbuild.errors import Problem, unknown
from etbuild.manifest import partitioners
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest

_NAME = "ethos-u"


class VelaSection(Section):
    """Limits for what Vela estimates."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields a problem for each method that does not exist, or that no Ethos-U runs. With a recipe, only the report
        can check the latter."""
        defaults, methods = manifest.get("defaults", {}), manifest.get("methods", {})
        lists = {name: partitioners.of_method(defaults, methods, name)[0] for name in methods}
        named = {name: {partitioners.name_and_options(each)[0] for each in entries} for name, entries in lists.items()}
        running = [name for name in named if _NAME in named[name] or "recipe" in manifest]
        limits: Mapping[str, Any] = manifest.get("checks", {})["vela"]
        for key, limit in limits.items():
            for name, hint in unknown(limit if isinstance(limit, dict) else (), methods):
                yield Problem(f"there is no method `{name}`", ("checks", "vela", key, name), hint, at_key=True)
            for name in limit.keys() & methods.keys() - {*running} if isinstance(limit, dict) else ():
                hint = f"add `{_NAME}` to its partitioners, or remove the limit"
                yield Problem(f"`{name}` has no `{_NAME}`", ("checks", "vela", key, name), hint, at_key=True)
        if not running:
            hint = f"add `{_NAME}` to the partitioners of a method"
            yield Problem(f"no method has `{_NAME}`, for which Vela compiles", ("checks", "vela"), hint, at_key=True)
