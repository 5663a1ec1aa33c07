"""Lists ExecuTorch's export recipes by name. A recipe supplies what the manifest does not say.

The names and their backends are those of ExecuTorch 1.5.1; a test compares them with ExecuTorch. The driver does not
know the content of a recipe; only ExecuTorch does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """The recipes of one module of ExecuTorch.

    Attributes:
        module: The module that registers the recipes when it is imported.
        type: The name of ExecuTorch's enumeration of the recipes, in that module.
        names: For each recipe, the backends that it lowers to.
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
