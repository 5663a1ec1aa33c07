"""The section `samples` of a manifest, as plans have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from etbuild.plan import kinds
from etbuild.plan.part import Part, Says

FOLDER = "folder"
"""In place of the name of a file with labels: the label of a sample is the name of the folder that holds it."""

Size = Annotated[int, Says(minimum=1, maximum=2**20)]
OfChannels = Annotated[
    tuple[Annotated[float, Says(text="A number. For example `0.5`.")], ...], Says(minItems=1, maxItems=4, default=...)
]


class Image(Part, needs=("size",)):
    """How pictures become tensors: `(pixel / 255 - mean) / deviation`, with a batch of one. Needs the package `pillow`.

    Attributes:
        size: The height and the width to which each picture is resized. For example `[224, 224]`.
        fit: `stretch` resizes the whole picture; `crop` resizes the shorter side, and takes the middle. For example
            `crop`.
        colors: `rgb`, `bgr`, or `gray` with one channel. For example `bgr`.
        layout: The order of the dimensions: `nchw` or `nhwc`. For example `nhwc`.
        mean: One number for all channels, or one for each. For example `[0.485, 0.456, 0.406]`.
        deviation: One number for all channels, or one for each. For example `[0.229, 0.224, 0.225]`.
    """

    size: Annotated[tuple[Size, ...], Says(minItems=2, maxItems=2)]
    fit: Literal["stretch", "crop"] = "stretch"
    colors: Literal["rgb", "bgr", "gray"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"
    mean: OfChannels = (0.0,)
    deviation: OfChannels = (1.0,)


class Sound(Part, needs=("rate",)):
    """How recordings become tensors `[channels, length]` of float32 between -1 and 1. Python reads `.wav` files of
    whole numbers; other files need the package `soundfile`.

    Attributes:
        rate: The samples per second that each file must have. For example `16000`.
        length: The number of samples: a longer recording is cut, and a shorter one gets zeros at its end. Without it,
            each recording keeps its length. For example `16000`.
        channels: The number of channels that each file must have. For example `1`.
    """

    rate: Size
    length: Annotated[int, Says(minimum=1, maximum=2**31)] | None = None
    channels: Annotated[int, Says(minimum=1, maximum=64)] = 1


class Samples(Part, definition="samples", needs=("files",)):
    """Files, each with the inputs of one call. Each file is in the key. For example `{files: "photos/*.png", image:
    {size: [224, 224]}}`.

    Attributes:
        files: A pattern for names of declared inputs: `*` stands for any text without `/`, `?` for one character. The
            samples are in the order of their names. Names that begin with a dot are left out. For example
            `"photos/*.png"`.
        count: How many of the files are read, from the first. For example `64`.
        loader: A callable in the declared sources that reads a file. It takes the path, a `pathlib.Path`, and returns
            the input, or a tuple of all positional inputs. Without `loader`, `image` and `sound`, a file holds a
            tensor: .npy, or a file of torch.save. For example `"images:load"`.
        image: Reads the files as pictures. For example `{size: [224, 224]}`.
        sound: Reads the files as recordings. For example `{rate: 16000, length: 16000}`.
        keys: For .safetensors files, the names of the tensors in them, in the order of the inputs. For example
            `[image]`.
        labels: What belongs to each sample, for metrics: a declared file with lines `FILE,LABEL`, where FILE is the
            name without its folder; or `folder`, if each folder has the name of its label. No build reads it. For
            example `labels.csv`, `folder`.
    """

    _LEFT_OUT = ("count", "loader", "image", "sound", "keys", "labels")

    files: kinds.InputName
    count: Annotated[int, Says(minimum=1, maximum=2**20)] | None = None
    loader: kinds.CallableName | None = None
    image: Image | None = None
    sound: Sound | None = None
    keys: kinds.SomeTexts | None = None
    labels: kinds.InputName | None = None

    @property
    def callables(self) -> Iterator[str]:
        """The loader, if the sources have it."""
        if self.loader is not None:
            yield self.loader

    @property
    def packages(self) -> frozenset[str]:
        """The packages that read the files, besides those of every build."""
        if self.image is not None:
            return frozenset({"PIL"})
        return frozenset({"soundfile"} if self.sound is not None and not self.files.endswith(".wav") else ())
