"""Makes the export recipe of a plan. ExecuTorch or the declared sources define it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from etbuild.errors import BuildError, DocumentPath, InputError, did_you_mean
from etplugins.recipes.names import FAMILIES, TARGETS
from etplugins.recipes.parts import RecipeCall

if TYPE_CHECKING:
    from executorch.export import ExportRecipe


def load_recipe(recipe: RecipeCall) -> ExportRecipe:
    """Makes a new recipe in each call, because partitioners and passes may keep state.

    Args:
        recipe: The name of the recipe, or its callable, with keyword arguments.

    Raises:
        InputError: The recipe does not accept the `kwargs`.
        BuildError: ExecuTorch cannot make the recipe, the callable failed or did not return a recipe, or the recipe
            sets `pipeline_stages`.
    """
    from executorch.export import ExportRecipe

    from etbuild.inputs.user_code import wrap_user_error

    path: DocumentPath = ("recipe",)
    with wrap_user_error(path, f"making the recipe `{recipe.name}`"), _refuse_ignored_kwargs(recipe):
        loaded = _make(recipe)
    if not isinstance(loaded, ExportRecipe):
        message = f"`{recipe.name}` returned {type(loaded).__name__}, not an ExportRecipe"
        raise BuildError.at(path, message)
    if loaded.pipeline_stages:
        hint = "remove it: the build always runs ExecuTorch's usual stages"
        raise BuildError.at(path, f"the recipe `{recipe.name}` sets `pipeline_stages`", hint)
    return loaded


def _make(recipe: RecipeCall) -> Any:
    name, kwargs = recipe.name, dict(recipe.kwargs)
    if ":" in name:
        from etbuild.inputs.user_code import load_callable

        return load_callable(name, ("recipe",))(**kwargs)
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

    targets = [attribute for attribute in dir(target) if not attribute.startswith("_")]
    if name not in targets:
        path = ("recipe", "kwargs", "minimum_deployment_target")
        raise InputError.at(path, f"Core ML has no target `{name}`", did_you_mean(name, targets))
    return target[name]


@contextmanager
def _refuse_ignored_kwargs(recipe: RecipeCall) -> Iterator[None]:
    """Raises InputError on exit if no recipe took an argument. ExecuTorch only logs a warning about that."""
    recorder, root = WarningRecorder("unexpected parameters"), logging.getLogger()
    disabled = logging.root.manager.disable
    root.addHandler(recorder)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.removeHandler(recorder)
    # A target passes each argument to the recipes of all its backends, and only one recipe takes it.
    if len(recorder.messages) >= len(TARGETS.get(recipe.name, [""])):
        raise InputError.at(("recipe", "kwargs"), recorder.messages[0].split(". ")[0])


class WarningRecorder(logging.Handler):
    """Collects the logged warnings that contain a text, even if `library_messages_off` hides them."""

    def __init__(self, text: str) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self._text = text

    def handle(self, record: logging.LogRecord) -> bool:
        """Keeps the message of a record if it contains the text."""
        if self._text in record.getMessage():
            self.messages.append(record.getMessage())
        return True
