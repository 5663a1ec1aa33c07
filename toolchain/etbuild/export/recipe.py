"""Makes the export recipe of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etbuild import plugins
from etbuild.plan.parts import RecipeCall

if TYPE_CHECKING:
    from executorch.export import ExportRecipe


def load_recipe(recipe: RecipeCall) -> ExportRecipe:
    """Makes a new recipe in each call, because partitioners and passes may keep state.

    Raises:
        InputError: The recipe does not accept its arguments.
        BuildError: The recipe cannot be made, or asks for what no build does.
    """
    loaded: ExportRecipe = plugins.load("export_recipe", "executorch")(recipe)
    return loaded
