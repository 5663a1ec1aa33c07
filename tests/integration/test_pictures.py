"""`etbuild run ... -o FILE.svg` draws what a program finds in an image, or says why it cannot."""

from __future__ import annotations

import base64
import json
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge

from etbuild.cli import main
from etbuild.errors import InputError
from etkit.running.pictures import drawn

IMAGE = torch.linspace(-2, 2, 3 * 4 * 8).reshape(1, 3, 4, 8)
LABELS = json.dumps(["cat", "<dog>"])
SVG = "{http://www.w3.org/2000/svg}"
FAR = 9.0  # a score of about 1


class Detector(torch.nn.Module):
    """Finds a dog in the middle of each image, and nothing else."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nothing = image.sum() * 0
        scores = torch.tensor([[[-FAR, FAR, -FAR], [-FAR, -FAR, FAR]]])
        return scores + nothing, torch.tensor([[[0.5, 0.5, 0.25, 0.5], [0.1, 0.1, 0.1, 0.1]]]) + nothing


def pictures(text: str) -> list[torch.Tensor]:
    """The pixels of each picture in an SVG, uint8 [rows, columns, 3]."""
    found = []
    for data in map(base64.b64decode, re.findall(r"base64,([^\"]+)", text)):
        width, height = struct.unpack(">2I", data[16:24])
        length = struct.unpack(">I", data[33:37])[0]
        lines = torch.frombuffer(bytearray(zlib.decompress(data[41 : 41 + length])), dtype=torch.uint8)
        found.append(lines.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3))
    return found


def test_the_command_draws_boxes_with_their_labels(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exported = torch.export.export(Detector(), (IMAGE,))
    edge = to_edge({"forward": exported}, constant_methods={"get_labels": LABELS})
    (tmp_path / "net.pte").write_bytes(edge.to_executorch().buffer)
    out = tmp_path / "out.svg"
    assert main.main(["run", str(tmp_path / "net.pte"), "forward", "-o", str(out)]) == 0, capfd.readouterr().err
    root = ET.fromstring(out.read_text())
    assert (root.get("width"), root.get("height")) == ("512", "256")
    [_, box] = root.findall(f"{SVG}rect")  # the first one is the background
    assert [float(box.get(key, "")) for key in ("x", "y", "width", "height")] == [192, 64, 128, 128]
    assert [each.text for each in root.findall(f"{SVG}text")] == ["<dog> 1.00"]
    [pixels] = pictures(out.read_text())
    assert pixels.shape == (4, 8, 3)
    assert (int(pixels[0, 0, 0]), int(pixels[-1, -1, -1])) == (0, 255)


def test_scores_of_all_labels_need_no_class_for_nothing() -> None:
    boxes = torch.tensor([[[0.5, 0.5, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5]]])
    text, note = drawn([IMAGE], [torch.tensor([[[FAR, -FAR], [-0.1, -FAR]]]), boxes], LABELS)
    assert (text.count("<rect"), "cat 1.00" in text, note) == (2, True, "")
    text, note = drawn([IMAGE], [torch.tensor([[[-1.0, -FAR], [-2, -FAR]]]), boxes], LABELS)
    assert (text.count("<rect"), note) == (1, "no box has a score of 0.5 or more: the largest is 0.269")
    four = json.dumps(["a", "b", "c", "d"])  # as many as a box has numbers
    text, _ = drawn([IMAGE], [torch.tensor([[[-FAR, -FAR, FAR, -FAR]] * 2]), boxes], four)
    assert text.count(">c 1.00<") == 2


def test_areas_have_the_colours_of_their_labels() -> None:
    scores = torch.zeros(1, 2, 2, 4)
    scores[0, 1, :, 2:] = 1
    text, _ = drawn([IMAGE], [scores], LABELS)
    _, areas = pictures(text)
    assert areas.shape == (2, 4, 3)
    assert [areas[0, column].tolist() for column in (0, 3)] == [[0x1F, 0x77, 0xB4], [0xD6, 0x27, 0x28]]
    assert [each.text for each in ET.fromstring(text).findall(f"{SVG}text")] == ["cat", "<dog>"]


def test_a_map_is_grey() -> None:
    text, _ = drawn([torch.tensor([1]), IMAGE], [torch.tensor([[[1.0, 2, 3, 5], [1, 1, 1, 1]]])], None)
    assert pictures(text)[1][..., 0].tolist() == [[0, 64, 128, 255], [0] * 4]
    for size in ((33, 25), (32, 24), (8, 6)):  # sides that an odd size was divided to, rounded up or down
        drawn([torch.zeros(1, 3, 65, 49)], [torch.zeros(1, *size)], None)
    far = torch.tensor([[[-3e38, 3e38], [0, 0]]])  # their difference is no number of float32
    text, _ = drawn([IMAGE[..., :4]], [far], None)
    assert pictures(text)[1][..., 0].tolist() == [[0, 255], [128, 128]]


@pytest.mark.parametrize(
    ("inputs", "outputs", "labels", "said"),
    [
        ([torch.ones(1, 4)], [torch.ones(1, 2, 2)], None, "needs an input that is an image"),
        ([IMAGE.long()], [torch.ones(1, 2, 2)], None, "needs an input that is an image"),
        ([IMAGE], [torch.ones(1, 2, 3), torch.ones(1, 2, 4)], None, "no picture is known for the outputs [1, 2, 3], "),
        ([IMAGE], [torch.ones(1, 2, 5), torch.ones(1, 2, 4)], LABELS, "no picture is known for the outputs [1, 2, 5]"),
        ([IMAGE], [torch.ones(2)], LABELS, "no picture is known for the outputs [2]"),
        ([IMAGE], [torch.ones(1, 2, 2).long()], LABELS, "no picture is known for the outputs without floats"),
        ([IMAGE], [torch.ones(1, 197, 768)], None, "no picture is known for the outputs [1, 197, 768]"),
        ([IMAGE], [torch.ones(1, 4, 4)], None, "no picture is known for the outputs [1, 4, 4]"),
        *(
            (inputs, outputs, LABELS, "cannot show NaN or infinity")
            for number in (torch.nan, torch.inf, -torch.inf)
            for inputs, outputs in [
                ([IMAGE * number], [torch.ones(1, 2, 4)]),
                ([IMAGE], [torch.tensor([[[1, number]]])]),
                ([IMAGE], [torch.full((1, 2, 2, 4), number)]),
                ([IMAGE], [torch.ones(1, 2, 2), torch.full((1, 2, 4), number)]),
                ([IMAGE], [torch.full((1, 2, 2), number), torch.ones(1, 2, 4)]),
            ]
        ),
        ([torch.ones(1, 3, 0, 8)], [torch.ones(1, 2, 4)], None, "a tensor without elements"),
        ([IMAGE], [torch.ones(1, 0, 8)], None, "a tensor without elements"),
        *(
            ([IMAGE], [torch.ones(1, 2, 4)], labels, "`get_labels` is no list of texts")
            for labels in ("cat,dog", '{"0": "a"}', "[1, 2]", "5", '"ab"', "[" * 9999, '["a", null]', "\ud800", 8)
        ),
    ],
)
def test_what_is_no_picture_is_refused(inputs: list[Any], outputs: list[Any], labels: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        drawn(inputs, outputs, labels)
    assert said in str(error.value)
