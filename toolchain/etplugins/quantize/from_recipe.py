"""Quantizes weights from the recipes that `quantize.deferred` makes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quant_primitives import MappingType
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxChooseQParamsAlgorithm

from etbuild.errors import BuildError
from etbuild.exception_text import summary
from etbuild.model.tensor_facts import Recipe
from etplugins.quantize.by_rows import by_rows


def is_slow(recipe: Recipe) -> bool:
    """Whether quantizing a weight takes longer than digesting it, and writing and reading the result."""
    return bool(recipe["algorithm"] == IntxChooseQParamsAlgorithm.HQQ_SCALE_ONLY.value)


def quantized(recipe: Recipe, parts: set[str], weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parts of a quantized weight.

    Args:
        recipe: How torchao makes the parts: a recipe without `part`.
        parts: The names of the parts. The others are zeros.
        weight: The content of the weight.

    Raises:
        BuildError: torchao refuses the content.
    """
    try:
        with torch.no_grad(), by_rows():
            made = IntxUnpackedToInt8Tensor.from_hp(
                weight.t().contiguous() if recipe.get("turned") else weight,
                tuple(recipe["block_size"]),
                getattr(torch, recipe["dtype"]),
                mapping_type=MappingType[recipe["mapping"]],
                intx_choose_qparams_algorithm=IntxChooseQParamsAlgorithm(recipe["algorithm"]),
            )
    except (MemoryError, OSError):
        raise
    except Exception as error:  # torchao raises anything
        raise BuildError.of(f"quantizing `{recipe['weight']}` with torchao failed: {summary(error)}") from error
    found: Mapping[str, torch.Tensor] = {name: getattr(made, name) for name in made.tensor_data_names}
    if wrong := [name for name, each in found.items() if name not in parts and each.any()]:
        raise AssertionError(f"`{wrong[0]}` of `{recipe['weight']}` is not zeros, as the export says")
    return {name: each.contiguous() for name, each in found.items() if name in parts}
