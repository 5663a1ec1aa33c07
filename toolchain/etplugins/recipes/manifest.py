"""The section `recipe` of a manifest: its check, and what a plan has of it."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild import backends
from etbuild.errors import DocumentPath, Problem, did_you_mean
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest
from etplugins.recipes.names import NAMES


class RecipeSection(Section):
    """The export recipe that a program starts from."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields a problem if ExecuTorch has no such recipe, or if a backend of the recipe is not here."""
        recipe = manifest["recipe"]
        name = recipe.get("name") if isinstance(recipe, dict) else recipe
        path: DocumentPath = ("recipe", "name") if isinstance(recipe, dict) else ("recipe",)
        if not isinstance(name, str):
            return
        if ":" not in name and name not in NAMES:
            yield Problem(f"unknown recipe `{name}`", path, did_you_mean(name, NAMES))
        for backend in NAMES.get(name, ()):
            yield from backends.check_here(backend, path)

    def normalized(self, manifest: Manifest) -> Manifest:
        """The manifest with the fields of ExecuTorch's configurations that it sets itself."""
        recipe = manifest["recipe"]
        said = {"edge_compile": {*manifest.get("edge_compile", {})}, "executorch": {*manifest.get("executorch", {})}}
        if any("memory_planning" in method for method in manifest["methods"].values()):
            said["executorch"].add("memory_planning")
        written = {"name": recipe} if isinstance(recipe, str) else recipe
        return {**manifest, "recipe": {**written, "said": {key: sorted(fields) for key, fields in said.items()}}}
