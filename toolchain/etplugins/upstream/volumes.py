"""Computes convolutions and poolings of volumes, such as videos, by those of images: the runtime has no kernels.

A volume has the dimensions batch, channels, depth, height and width. The images along its depth become channels where
one number of the result reads several of them, and a batch elsewhere.

Limit: `volumes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from etplugins.upstream.graph_changes import Add, Writer

_aten = torch.ops.aten

_DEPTH = 2


def _convolution(add: Add, volume: Any, weight: Any, bias: Any = None, *options: Any) -> Any:
    stride, padding, dilation, groups = *options, *_OPTIONS[len(options) :]
    if (
        groups == 1
        and padding in (0, [0, 0, 0], "valid")
        and volume.meta["val"].shape[2:] == weight.meta["val"].shape[2:]
    ):
        # one number for each kernel, such as a patch of a video: a linear layer is much faster
        rows = [add(_aten.flatten.using_ints, each, 1) for each in (volume, weight)]
        return add(
            _aten.unflatten.int, add(_aten.linear.default, *rows, bias), 1, [weight.meta["val"].shape[0], 1, 1, 1]
        )
    [step, *strides], [spread, *dilations] = _of_each_dimension(stride), _of_each_dimension(dilation)
    reach = spread * (_depth(weight) - 1)
    convolution, paddings = _aten.conv2d.padding, padding
    before = reach // 2 if padding == "same" else 0
    after = reach - before if padding == "same" else 0
    if not isinstance(padding, str):
        convolution = _aten.conv2d.default
        before, *paddings = _of_each_dimension(padding)
        after = before
    volume = _padded(add, volume, before, after)
    images, count = _read_together(add, volume, range(0, reach + 1, spread), step)
    kernels = add(_aten.flatten.using_ints, weight, 1, _DEPTH)
    return _volume(add, add(convolution, images, kernels, bias, strides, paddings, dilations, groups), count)


def _transposed_convolution(add: Add, volume: Any, weight: Any, bias: Any = None, *options: Any) -> Any:
    """A convolution of the volume with zeros between its images, in reverse: the first part of a kernel reads the last
    image."""
    stride, padding, output_padding, groups, dilation = *options, *_TRANSPOSED_OPTIONS[len(options) :]
    [step, *strides], [spread, *dilations] = _of_each_dimension(stride), _of_each_dimension(dilation)
    [padded, *paddings], [added, *added_paddings] = _of_each_dimension(padding), _of_each_dimension(output_padding)
    reach = spread * (_depth(weight) - 1)
    if step > 1:
        zeros = add(_aten.constant_pad_nd.default, add(_aten.unsqueeze.default, volume, 3), [0, 0, 0, 0, 0, step - 1])
        volume = add(_aten.flatten.using_ints, zeros, _DEPTH, 3)
    volume = _padded(add, volume, reach - padded, reach - padded + added - (step - 1))
    images, count = _read_together(add, volume, range(reach, -1, -spread), 1)
    kernels = add(_aten.flatten.using_ints, add(_aten.transpose.int, weight, 1, _DEPTH), 0, 1)
    options_of_images = strides, paddings, added_paddings, groups, dilations
    return _volume(add, add(_aten.conv_transpose2d.input, images, kernels, bias, *options_of_images), count)


def _pooling(pooling: Any, lists: int) -> Writer:
    """Pools height and width, then depth. The first options of the operator are lists: kernel, stride, padding, ..."""

    def write(add: Add, volume: Any, kernel: Any, stride: Any = (), *options: Any) -> Any:
        each = [*map(_of_each_dimension, (kernel, stride or kernel, *options[: lists - 2]))]
        others = options[lists - 2 :]
        images = add(_aten.flatten.using_ints, volume, 1, _DEPTH)
        images = add(pooling, images, *(option[1:] for option in each), *others)
        volume = add(_aten.unflatten.int, images, 1, [volume.meta["val"].shape[1], -1])
        rows = add(_aten.flatten.using_ints, volume, 3, 4)
        of_width = 1, 1, 0, 1
        by_depth = ([option[0], other] for option, other in zip(each, of_width, strict=False))
        return add(_aten.unflatten.int, add(pooling, rows, *by_depth, *others), 3, [-1, volume.meta["val"].shape[4]])

    return write


def _read_together(add: Add, volume: Any, offsets: range, step: int) -> tuple[Any, int]:
    """A batch of images with the channels of all images that a kernel reads, and the images of each volume."""
    count = (_depth(volume) - max(offsets) - 1) // step + 1
    ends = [offset + (count - 1) * step + 1 for offset in offsets]
    parts = [
        add(_aten.slice.Tensor, volume, _DEPTH, offset, end, step) for offset, end in zip(offsets, ends, strict=True)
    ]
    channels = add(_aten.flatten.using_ints, add(_aten.stack.default, parts, 2), 1, 2)
    return add(_aten.flatten.using_ints, add(_aten.transpose.int, channels, 1, 2), 0, 1), count


def _volume(add: Add, images: Any, count: int) -> Any:
    return add(_aten.transpose.int, add(_aten.unflatten.int, images, 0, [-1, count]), 1, 2)


def _padded(add: Add, volume: Any, before: int, after: int) -> Any:
    """The volume with black images before and after it. Negative numbers take images away."""
    if min(before, after) < 0:
        volume = add(_aten.slice.Tensor, volume, _DEPTH, max(-before, 0), _depth(volume) + min(after, 0))
    if max(before, after) > 0:
        volume = add(_aten.constant_pad_nd.default, volume, [0, 0, 0, 0, max(before, 0), max(after, 0)])
    return volume


def _depth(volume: Any) -> int:
    size: int = volume.meta["val"].shape[_DEPTH]
    return size


def _of_each_dimension(option: int | list[int]) -> list[int]:
    """An option for depth, height and width."""
    options = [option] if isinstance(option, int) else option
    return [*options] if len(options) == 3 else [*options] * 3


def _in_batch(writer: Writer) -> Writer:
    """A writer that takes a volume without a batch, too."""

    def write(add: Add, volume: Any, *options: Any) -> Any:
        if volume.meta["val"].dim() == 5:
            return writer(add, volume, *options)
        return add(_aten.squeeze.dim, writer(add, add(_aten.unsqueeze.default, volume, 0), *options), 0)

    return write


def _has_known_depth(node: Any) -> bool:
    return isinstance(node.args[0].meta["val"].shape[-3], int)


def _has_known_channels_and_width(node: Any) -> bool:
    """Whether a pooling has known channels and a known width, and computes its own divisors."""
    channels, *_, width = node.args[0].meta["val"].shape[-4:]
    divisor = node.args[6] if len(node.args) > 6 else None
    return isinstance(channels, int) and isinstance(width, int) and divisor is None


_OPTIONS: tuple[Any, ...] = (1, 0, 1, 1)
"""The defaults of a convolution: stride, padding, dilation, groups."""
_TRANSPOSED_OPTIONS: tuple[Any, ...] = (1, 0, 0, 1, 1)
"""The defaults of a transposed convolution: stride, padding, output padding, groups, dilation."""

WRITERS: dict[Any, tuple[Writer, Callable[[torch.fx.Node], bool]]] = {
    _aten.avg_pool3d.default: (_in_batch(_pooling(_aten.avg_pool2d.default, 3)), _has_known_channels_and_width),
    _aten.conv3d.default: (_in_batch(_convolution), _has_known_depth),
    _aten.conv3d.padding: (_in_batch(_convolution), _has_known_depth),
    _aten.conv_transpose3d.input: (_in_batch(_transposed_convolution), _has_known_depth),
    _aten.max_pool3d.default: (_in_batch(_pooling(_aten.max_pool2d.default, 4)), _has_known_channels_and_width),
}
"""The writer of each operator, and a function that tells whether it suits a node."""
