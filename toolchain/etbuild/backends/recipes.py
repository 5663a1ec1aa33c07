"""ExecuTorch's export recipes by name: what a program starts from where the manifest says nothing else.

The names, and the backends of each, are those of ExecuTorch 1.5.1; a test holds them against ExecuTorch. What a recipe
is made of only ExecuTorch knows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean

if TYPE_CHECKING:
    from executorch.export import ExportRecipe

    from etbuild.inputs.user_code import SourceFinder

DECIDES = ("partitioners", "quantize", "strict")
"""What a recipe decides for a method where neither the method nor `defaults` says it."""


@dataclass(frozen=True)
class Family:
    """Recipes that one module of ExecuTorch has.

    Attributes:
        module: Registers them when it is imported.
        type: ExecuTorch's enumeration of them, in that module.
        names: Each with the backends that it lowers to.
    """

    module: str
    type: str
    names: dict[str, tuple[str, ...]]


FAMILIES = (
    Family(
        "executorch.backends.xnnpack.recipes",
        "XNNPackRecipeType",
        {
            f"xnnpack_{name}": ("xnnpack",)
            for name in (
                "fp32",
                "pt2e_int8_dynamic_per_channel",
                "pt2e_int8_static_per_channel",
                "pt2e_int8_static_per_tensor",
                "torchao_int8da_int4w_per_channel",
                "torchao_int8da_int4w_per_tensor",
            )
        },
    ),
    Family(
        "executorch.backends.apple.coreml.recipes",
        "CoreMLRecipeType",
        {
            f"coreml_{name}": ("coreml",)
            for name in (
                "fp32",
                "fp16",
                "pt2e_int8_static",
                "pt2e_int8_weight_only",
                "torchao_int4_weight_only_per_channel",
                "torchao_int4_weight_only_per_group",
                "torchao_int8_weight_only_per_channel",
                "torchao_int8_weight_only_per_group",
                "codebook_weight_only",
            )
        },
    ),
    Family(
        "executorch.backends.arm.recipes",
        "ArmRecipeType",
        {
            **{f"arm_{name}": ("ethos-u",) for name in ("ethos_u55_int8", "ethos_u65_int8", "ethos_u85_int8")},
            **{f"arm_{name}": ("tosa",) for name in ("tosa_fp", "tosa_int8", "tosa_a16w8")},
            **{f"arm_{name}": ("vgf",) for name in ("vgf_fp", "vgf_int8")},
        },
    ),
    Family("executorch.backends.qualcomm.recipes", "QNNRecipeType", {"qnn_fp16": ("qualcomm",)}),
)
TARGETS = {
    "ios-arm64-coreml-fp32": ("coreml", "xnnpack"),
    "ios-arm64-coreml-fp16": ("coreml", "xnnpack"),
    "ios-arm64-coreml-int8": ("coreml",),
    "android-arm64-snapdragon-fp16": ("qualcomm", "xnnpack"),
}
NAMES = {**TARGETS, **{name: backends for family in FAMILIES for name, backends in family.names.items()}}


def reduce(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The plan's `recipe`: with what of ExecuTorch's own configuration the manifest says itself."""
    recipe = manifest.get("recipe")
    if recipe is None:
        return None
    written = {"name": recipe} if isinstance(recipe, str) else recipe
    said = {key: set(manifest.get(key, {})) for key in ("edge_compile", "executorch")}
    if any("memory_planning" in method for method in manifest["methods"].values()):
        said["executorch"].add("memory_planning")
    return {"kwargs": {}, **written, "said": {key: sorted(fields) for key, fields in said.items()}}


def decided(manifest: dict[str, Any], name: str) -> list[str]:
    """What a manifest leaves to its recipe for a method; empty without a recipe."""
    method, defaults = manifest["methods"][name], manifest.get("defaults", {})
    if "recipe" not in manifest or "program" in method:
        return []
    by_method = defaults.get("partitioners")
    inherited = set(defaults) - ({"partitioners"} if isinstance(by_method, dict) and name not in by_method else set())
    return [key for key in DECIDES if key not in method and key not in inherited]


def check(recipe: Any) -> Iterator[Problem]:
    """What is wrong with a manifest's `recipe` that a schema cannot say."""
    name = recipe.get("name") if isinstance(recipe, dict) else recipe
    if isinstance(name, str) and ":" not in name and name not in NAMES:
        path: DocumentPath = ("recipe", "name") if isinstance(recipe, dict) else ("recipe",)
        yield Problem(f"unknown recipe `{name}`", path, did_you_mean(name, NAMES))


def backends(recipe: dict[str, Any]) -> tuple[str, ...]:
    """The backends of a plan's recipe; none are known of one from the declared sources."""
    return NAMES.get(recipe["name"], ())


def load(recipe: dict[str, Any], finder: SourceFinder) -> ExportRecipe:
    """The recipe of a plan, made anew: its partitioners and passes may keep state.

    Raises:
        InputError: The recipe does not take the `kwargs`.
        BuildError: ExecuTorch cannot make it, or the callable failed.
    """
    from executorch.export import ExportRecipe

    from etbuild.inputs.user_code import blame

    path: DocumentPath = ("recipe",)
    with blame(path, f"making the recipe `{recipe['name']}`", finder), _strict_about_kwargs(recipe):
        made = _make(recipe, finder)
    if not isinstance(made, ExportRecipe):
        message = f"`{recipe['name']}` returned {type(made).__name__}, not an ExportRecipe"
        raise BuildError([Problem(message, path)])
    if made.pipeline_stages:
        hint = "leave `pipeline_stages` out: the build has ExecuTorch's usual stages"
        raise BuildError([Problem(f"the recipe `{recipe['name']}` has stages of its own", path, hint)])
    return made


def _make(recipe: dict[str, Any], finder: SourceFinder) -> Any:
    name, kwargs = recipe["name"], dict(recipe["kwargs"])
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
def _strict_about_kwargs(recipe: dict[str, Any]) -> Iterator[None]:
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
    if len(heard) >= len(TARGETS.get(recipe["name"], [""])):
        raise InputError([Problem(heard[0].split(". ")[0], ("recipe", "kwargs"))])
