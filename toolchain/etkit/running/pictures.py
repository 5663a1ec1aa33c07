"""Draws what a program finds in a picture, as SVG: boxes with labels, areas of labels, masks of objects, or a map.

Equal tensors give equal bytes.
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from etbuild.errors import InputError
from etbuild.files import json_file
from etkit import svg

_LEAST_SCORE = 0.5  # a box with a lower score is not drawn
_LEAST_OF_TEXTS = 0.1  # the same, where texts are compared with boxes
_SIDE = 512  # a smaller picture is drawn larger, by a whole factor
_BOX, _IMAGE = 4, 4  # the numbers of a box, and the dimensions of an image
_CHANNELS = (1, 3)
_COLOURS = torch.tensor([[*bytes.fromhex(colour[1:])] for colour in svg.COLOURS], dtype=torch.uint8)
_HALF = ' opacity="0.5"'
_KINDS = (
    "boxes [1, N, 4] with scores [1, N, labels], scores of places [1, labels, rows, columns], masks [1, N, rows, "
    "columns] with scores [1, N, labels + 1], masks [1, N, M, rows, columns] with the quality of each [1, N, M], or a "
    "map [1, rows, columns] with the aspect ratio of the image"
)


def drawn(
    inputs: Sequence[Any], outputs: Sequence[Any], labels: object, program: str = "", earlier: Sequence[Any] = ()
) -> tuple[str, str]:
    """The text of an SVG, and a note for the user, which may be empty.

    Args:
        inputs: The inputs of the call, and of earlier ones. One is an image, float [1, 1 or 3, rows, columns]; its
            smallest number becomes black, and its largest one white.
        outputs: What the call returned: float tensors as in `_KINDS`. Boxes are centers and sizes, in parts of it.
        labels: The names of labels as JSON, from the constant method `get_labels`; None if the program has none.
        program: The SHA-256 of the program, which cards compare; empty for none.
        earlier: What earlier calls returned. It may have the boxes that the outputs compare with texts.

    Raises:
        InputError: No input is an image, the outputs have other shapes, the image or a float output is empty or has NaN
            or infinity, or the labels are no list of texts.
    """
    image = next((each for each in inputs if _is_image(each)), None)
    if image is None:
        raise InputError.of("a picture needs an input that is an image: float [1, 3, rows, columns]")
    known = [each for each in outputs if isinstance(each, torch.Tensor) and each.is_floating_point()]
    before = [each for each in earlier if isinstance(each, torch.Tensor) and each.isfinite().all()]
    if any(each.numel() == 0 or not each.isfinite().all() for each in (image, *known)):
        raise InputError.of("a picture cannot show NaN or infinity, or a tensor without elements")
    names = _names(labels)
    size = image.shape[2], image.shape[3]
    factor = max(1, _SIDE // max(size))
    rows, columns = (side * factor for side in size)
    body, note = (
        _boxes(known, names, rows, columns)
        or _boxes_of_texts(known, before, rows, columns)
        or _areas(known, names, rows, columns)
        or _masks(known, rows, columns)
        or _map(known, rows, columns)
    )
    return svg.document(columns, rows, [_picture(_grey(image[0]), rows, columns), *body], program), note


def _is_image(value: Any) -> bool:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() == _IMAGE
    return is_float and value.shape[0] == 1 and value.shape[1] in _CHANNELS


def _names(labels: object) -> list[str]:
    if labels is None:
        return []
    with suppress(ValueError):
        found = json_file.parse(labels.encode()) if isinstance(labels, str) else None
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            return found
    raise InputError.of("`get_labels` is no list of texts", 'a program returns JSON there, such as `["cat", "dog"]`')


Part = tuple[list[str], str]


def _boxes(outputs: Sequence[torch.Tensor], names: Sequence[str], rows: int, columns: int) -> Part | None:
    """Boxes with their labels; None if the outputs are no boxes. Scores of one more class are those of no object."""
    sizes = (len(names), len(names) + 1)
    for boxes in (each for each in reversed(outputs) if each.dim() == 3 and each.shape[2] == _BOX):
        fitting = (each for each in outputs if each is not boxes and each.shape[:2] == boxes.shape[:2])
        scores = next((each[0] for each in fitting if each.dim() == 3 and each.shape[2] in sizes), None)
        if scores is not None and names:
            parts = scores.sigmoid() if scores.shape[1] == len(names) else scores.softmax(-1)[:, :-1]
            return _drawn_boxes(boxes[0], parts, names, rows, columns)
    return None


def _boxes_of_texts(
    outputs: Sequence[torch.Tensor], earlier: Sequence[torch.Tensor], rows: int, columns: int
) -> Part | None:
    """Boxes that an earlier call found, with the number of the text that fits each of them; None if there are none."""
    for boxes in (each for each in earlier if each.dim() == 3 and each.shape[::2] == (1, _BOX)):
        scores = next((each[0] for each in outputs if each.dim() == 3 and each.shape[:2] == boxes.shape[:2]), None)
        if scores is not None and scores.shape[1] > 0:
            numbers = [f"text {number}" for number in range(scores.shape[1])]
            return _drawn_boxes(boxes[0], scores.sigmoid(), numbers, rows, columns, _LEAST_OF_TEXTS)
    return None


def _drawn_boxes(
    boxes: torch.Tensor,
    parts: torch.Tensor,
    names: Sequence[str],
    rows: int,
    columns: int,
    least: float = _LEAST_SCORE,
) -> Part:
    best, kinds = parts.max(-1)
    body = []
    for index in best.argsort().tolist():  # the best one last, so that it is above the others
        if float(best[index]) >= least:
            x, y, width, height = (boxes[index].double() * torch.tensor([columns, rows, columns, rows])).tolist()
            colour = svg.COLOURS[int(kinds[index]) % len(svg.COLOURS)]
            left, top = x - width / 2, y - height / 2
            place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
            body.append(f'<rect {place} fill="none" stroke="{colour}" stroke-width="2"/>')
            said = f"{names[int(kinds[index])]} {float(best[index]):.2f}"
            body.append(svg.text(round(left + 3, 1), round(max(top, 0) + 13, 1), said, f'fill="{colour}"'))
    largest = float(best.max()) if len(best) else 0.0
    return body, "" if body else f"no box has a score of {least} or more: the largest is {largest:.3g}"


def _areas(outputs: Sequence[torch.Tensor], names: Sequence[str], rows: int, columns: int) -> Part | None:
    """The area of each label, in its colour, with a list of the labels that are there."""
    scores = _scores_of_places(outputs, len(names))
    if scores is None:
        return None
    kinds = scores.argmax(0)
    body = [_picture(_COLOURS[kinds % len(_COLOURS)], rows, columns, _HALF)]
    for line, kind in enumerate(kinds.unique().tolist()):
        style = f'fill="{svg.COLOURS[kind % len(svg.COLOURS)]}" stroke="white" stroke-width="3" paint-order="stroke"'
        body.append(svg.text(6, 18 + 16 * line, names[kind], style))
    return body, ""


def _scores_of_places(outputs: Sequence[torch.Tensor], labels: int) -> torch.Tensor | None:
    """Scores [labels, rows, columns]: an output, or the sum over masks that have scores of labels and of no object."""
    maps = [each[0] for each in outputs if each.dim() == 4 and each.shape[0] == 1 and labels > 1]
    direct = (each for each in maps if len(each) == labels)
    summed = (
        torch.einsum("nl,nrc->lrc", each[0].double().softmax(-1)[:, :-1], masks.double().sigmoid())
        for masks in maps
        for each in outputs
        if each.shape == (1, len(masks), labels + 1)
    )
    return next(itertools.chain(direct, summed), None)


def _masks(outputs: Sequence[torch.Tensor], rows: int, columns: int) -> Part | None:
    """The best mask of each object, with its quality. A mask is above 0 inside of the object."""
    for masks in (each[0] for each in outputs if each.dim() == 5 and each.shape[0] == 1):
        quality = next((each[0] for each in outputs if each.shape == (1, *masks.shape[:2])), None)
        if quality is not None:
            best, chosen = quality.max(-1)
            body = []
            for number, mask in enumerate(masks[torch.arange(len(masks)), chosen]):
                colour = number % len(_COLOURS)
                inside = (mask > 0)[..., None] * torch.tensor([*_COLOURS[colour].tolist(), 255], dtype=torch.uint8)
                body.append(_picture(inside, rows, columns, _HALF))
                style = f'fill="{svg.COLOURS[colour]}" stroke="white" stroke-width="3" paint-order="stroke"'
                body.append(svg.text(6, 18 + 16 * number, f"{float(best[number]):.2f}", style))
            return body, ""
    return None


def _map(outputs: Sequence[torch.Tensor], rows: int, columns: int) -> Part:
    """A map of numbers in place of the picture: the smallest is black. Other numbers, such as features of tokens, have
    the same dimensions, but seldom the aspect ratio of the picture, up to the rounding of its sides."""
    maps = (each for each in outputs if each.dim() > 2 and each.shape[:-2].numel() == 1)
    found = [
        each.reshape(1, *each.shape[-2:])
        for each in maps
        if abs(each.shape[-2] * columns - each.shape[-1] * rows) < max(rows, columns)
    ]
    if len(outputs) != 1 or not found:
        shapes = ", ".join(str([*each.shape]) for each in outputs)
        raise InputError.of(f"no picture is known for the outputs {shapes or 'without floats'}", f"known: {_KINDS}")
    return [_picture(_grey(found[0]), rows, columns)], ""


def _grey(numbers: torch.Tensor) -> torch.Tensor:
    """The bytes of a picture, [rows, columns, 3], from numbers, [1 or 3, rows, columns]."""
    numbers = numbers.double()  # a smaller type may have no number for the difference
    low, high = numbers.aminmax()
    scaled = (numbers - low) / (high - low).clamp(min=1e-12)
    return (scaled * 255).round().to(torch.uint8).expand(3, -1, -1).permute(1, 2, 0)


def _picture(pixels: torch.Tensor, rows: int, columns: int, more: str = "") -> str:
    """A picture, uint8 [rows, columns, 3 or 4], stretched to a size."""
    data = base64.b64encode(_png(pixels)).decode()
    size = f'width="{columns}" height="{rows}" preserveAspectRatio="none"'
    return f'<image {size} style="image-rendering: pixelated"{more} href="data:image/png;base64,{data}"/>'


def _png(pixels: torch.Tensor) -> bytes:
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in pixels.contiguous().numpy())
    header = struct.pack(">2I5B", width, height, 8, 6 if channels == 4 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
