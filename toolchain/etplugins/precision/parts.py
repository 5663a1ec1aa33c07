"""The section `dtype` of a model: which parts compute in 16-bit floats."""

from __future__ import annotations

from typing import Annotated, Literal

from etbuild.plan import kinds
from etbuild.plan.part import Part, Says

Kinds = Annotated[tuple[kinds.Text, ...], Says(minItems=1, uniqueItems=True, default=...)]


class Keep(Part, section="Keep", minProperties=1):
    """The parts that compute in float32, with weights in float32. For example `{modules: ["head.*"], layers: [norm]}`.

    Attributes:
        modules: Patterns for the names of the model's submodules, as in `named_data`. Each takes all that is inside.
            For example `["decoder"]`.
        layers: Kinds of layers or operators: words in the class name of the module that calls the operator, or in the
            name of ATen's operator. Case and `_` do not matter. `norm` stands for `nn.LayerNorm`, for an `RMSNorm` of
            your own, and for `F.group_norm`. For example `[norm, softmax]`.
    """

    modules: Annotated[kinds.Patterns, Says(default=...)] = ()
    layers: Kinds = ()


class Precision(Part, section="Precision", definition="precision"):
    """Methods compute in 16-bit floats, and take and return float32. For 16 bits there too, write `dtype: float16`. For
    example `{compute: float16, keep: {layers: [norm]}}`.

    Attributes:
        compute: The dtype of the parameters and of what is computed from inputs and parameters. For example `float16`.
        keep: The parts that compute in float32. For example `{modules: [head], layers: [norm]}`.
    """

    compute: Literal["float16", "bfloat16"]
    keep: Keep = Keep()
