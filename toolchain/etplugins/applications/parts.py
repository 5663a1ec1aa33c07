"""The sections `for` and `metadata.inputs` of a manifest, as plans have them."""

from __future__ import annotations

from typing import Annotated, Literal

from etbuild.plan import kinds
from etbuild.plan.part import Part, Says

Number = Annotated[float, Says(text="A number. For example `0.5`.")]
OfChannels = Annotated[tuple[Number, ...], Says(minItems=1, maxItems=4, default=...)]
Letters = Annotated[str, Says(pattern="^[a-z]{1,8}$")]
MostLabels = 200_000


class Application(Part, short="kind", also=kinds.FileStem, definition="application", needs=("kind",)):
    """A kind of application, with what one of your own has in addition. For example `{kind: android, kernels:
    ["mylib::op.out"]}`.

    Attributes:
        kind: The kind. For example `android`.
        kernels: Operators for which the application links kernels of its own, as programs call them. For example
            `["mylib::op.out"]`.
        backends: Backends that the application links in addition, as ExecuTorch's runtime calls them. For example
            `[QnnBackend]`.
    """

    _LEFT_OUT = ("kernels", "backends")

    kind: kinds.FileStem
    kernels: Annotated[kinds.Operators, Says(default=...)] = ()
    backends: Annotated[tuple[kinds.Identifier, ...], Says(uniqueItems=True, default=...)] = ()


class Described(Part, definition="described", needs=("name",)):
    """What one input or output means. For example `{name: image, layout: nchw, colors: rgb, range: [0, 1]}`.

    Attributes:
        name: A name for it, since programs have none. For example `image`.
        meaning: What it is, on one line. For example `"A photo of one plant"`.
        layout: A letter for each dimension, such as `n` for the batch, `c` for channels, `h` and `w` for height and
            width, `t` for time. For example `nchw`.
        colors: The channels of a picture, which the layout has at `c`. For example `rgb`.
        mean: What an application subtracts from pixels between 0 and 1, before it divides them by `deviation`: one
            number for all channels, or one for each. For example `[0.485, 0.456, 0.406]`.
        deviation: The divisor: one number for all channels, or one for each. For example `[0.229, 0.224, 0.225]`.
        range: The smallest and the largest value. For example `[0, 1]`.
        unit: The unit of its values. For example `Hz`.
        labels: What stands at each place of the dimension `c`; without a layout, of the last dimension. If the values
            are integers, what each value stands for, from 0. For example `[cat, dog]`.
    """

    _LEFT_OUT = ("meaning", "layout", "colors", "mean", "deviation", "range", "unit", "labels")

    name: kinds.Identifier
    meaning: kinds.MetadataText | None = None
    layout: Letters | None = None
    colors: Literal["rgb", "bgr", "rgba", "gray"] | None = None
    mean: OfChannels = ()
    deviation: OfChannels = ()
    range: Annotated[tuple[Number, ...], Says(minItems=2, maxItems=2, default=...)] = ()
    unit: kinds.MetadataText | None = None
    labels: Annotated[tuple[kinds.MetadataText, ...], Says(minItems=1, maxItems=MostLabels, default=...)] = ()


CHANNELS = {"rgb": 3, "bgr": 3, "rgba": 4, "gray": 1}
"""The number of channels of each value of `colors`."""
