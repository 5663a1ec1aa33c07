"""An export recipe of ExecuTorch or of the declared sources, as an object."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from etbuild.backends.recipes import FAMILIES, TARGETS
from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.plan.parts import RecipeCall

if TYPE_CHECKING:
    from executorch.export import ExportRecipe

    from etbuild.inputs.user_code import SourceFinder


def load_recipe(recipe: RecipeCall, finder: SourceFinder) -> ExportRecipe:
    """The recipe of a plan, made anew: its partitioners and passes may keep state.

    Raises:
        InputError: The recipe does not take the `kwargs`.
        BuildError: ExecuTorch cannot make it, or the callable failed.
    """
    from executorch.export import ExportRecipe

    from etbuild.inputs.user_code import blame

    path: DocumentPath = ("recipe",)
    with blame(path, f"making the recipe `{recipe.name}`", finder), _strict_about_kwargs(recipe):
        made = _make(recipe, finder)
    if not isinstance(made, ExportRecipe):
        message = f"`{recipe.name}` returned {type(made).__name__}, not an ExportRecipe"
        raise BuildError([Problem(message, path)])
    if made.pipeline_stages:
        hint = "leave `pipeline_stages` out: the build has ExecuTorch's usual stages"
        raise BuildError([Problem(f"the recipe `{recipe.name}` has stages of its own", path, hint)])
    return made


def _make(recipe: RecipeCall, finder: SourceFinder) -> Any:
    name, kwargs = recipe.name, dict(recipe.kwargs)
    if ":" in name:
        from etbuild.inputs.user_code import load_callable

        return load_callable(name, finder, ("recipe",))(**kwargs)
    if isinstance(kwargs.get("minimum_deployment_target"), str):
        kwargs["minimum_deployment_target"] = _deployment_target(kwargs["minimum_deployment_target"])
    if name in TARGETS:
        targets = importlib.import_module("executorch.export.target_recipes")
        make = targets.get_ios_recipe if name.startswith("ios-") else targets.get_android_recipe
        return make(name, **kwargs)
    from executorch.export import ExportRecipe

    family = next(family for family in FAMILIES if name in family.names)
    kind = getattr(importlib.import_module(family.module), family.type)
    return ExportRecipe.get_recipe(kind(name), **kwargs)


def _deployment_target(name: str) -> Any:
    from coremltools import target

    known = [each for each in dir(target) if not each.startswith("_")]
    if name not in known:
        path = ("recipe", "kwargs", "minimum_deployment_target")
        raise InputError([Problem(f"Core ML has no target `{name}`", path, did_you_mean(name, known))])
    return target[name]


@contextmanager
def _strict_about_kwargs(recipe: RecipeCall) -> Iterator[None]:
    """ExecuTorch logs a warning about keyword arguments that it ignores: a mistake of the user's that would be lost."""
    import logging

    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "unexpected parameters" in record.getMessage():
                heard.append(record.getMessage())

    root, ear, disabled = logging.getLogger(), Ear(logging.WARNING), logging.root.manager.disable
    root.addHandler(ear)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.removeHandler(ear)
    # A target hands its arguments to the recipe of each of its backends, and one of them takes each.
    if len(heard) >= len(TARGETS.get(recipe.name, [""])):
        raise InputError([Problem(heard[0].split(". ")[0], ("recipe", "kwargs"))])
