"""The types of a manifest's data: `make reference` writes them from `etplugins.recipes.parts`."""

from __future__ import annotations

from typing import TypedDict

from etbuild.manifest.sections import Options


class Recipe(TypedDict, total=False):
    """Data of `etplugins.recipes.parts.RecipeCall`."""

    name: str
    kwargs: Options
