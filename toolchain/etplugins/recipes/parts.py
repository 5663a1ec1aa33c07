"""The section `recipe` of a manifest, as plans have it."""

from __future__ import annotations

from typing import Annotated

from etbuild.plan.kinds import Names, Options
from etbuild.plan.part import Part, Says
from etplugins.recipes.names import NAMES


class RecipeCall(Part, section="Recipe", short="name", also=str):
    """An export recipe with its arguments: one of ExecuTorch's by name, or a `module:callable` that returns one.

    Attributes:
        name: Name of the recipe, or a `module:callable`. For example `xnnpack_fp32`.
        kwargs: Keyword arguments of the recipe. For example `{group_size: 64}`.
    """

    name: str
    kwargs: Options = {}

    @property
    def callables(self) -> Names:
        """The `module:callable`, if it comes from the declared sources."""
        return (self.name,) if ":" in self.name else ()

    @property
    def backends(self) -> Names:
        """The backends that the recipe lowers to. Empty for a recipe from the declared sources, where they are
        unknown."""
        return NAMES.get(self.name, ())


_SAID = {
    "type": "object",
    "required": ["edge_compile", "executorch"],
    "additionalProperties": {"type": "array", "items": {"type": "string"}},
}


class Recipe(RecipeCall):
    """A recipe, and for each of ExecuTorch's configurations the fields that the manifest sets itself."""

    said: Annotated[dict[str, Names], Says(plan=_SAID)] = {}

    @property
    def call(self) -> RecipeCall:
        """The recipe without what the plan adds to it."""
        return self.as_part(RecipeCall)
