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


class Encoder(torch.nn.Module):
    """Returns features of two boxes, and the boxes."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nothing = image.sum() * 0
        boxes = torch.tensor([[[0.5, 0.5, 0.25, 0.5], [0.1, 0.1, 0.1, 0.1]]])
        return torch.eye(2)[None] + nothing, boxes + nothing


class Text(torch.nn.Module):
    """Returns a vector of a text: token 0 fits the first box, token 1 the second one."""

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return torch.eye(2)[token]


class Scores(torch.nn.Module):
    """Compares boxes with texts."""

    def forward(self, features: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        return features @ texts.t() * 2 * FAR - FAR


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program of three methods, two of which compute inputs of the third one."""
    rows = torch.export.Dim("rows", max=4)
    methods = {
        "image_encoder": torch.export.export(Encoder(), (IMAGE,)),
        "text_encoder": torch.export.export(Text(), (torch.tensor([0]),)),
        "scores": torch.export.export(
            Scores(), (torch.eye(2)[None], torch.ones(3, 2)), dynamic_shapes={"features": None, "texts": {0: rows}}
        ),
    }
    path = tmp_path_factory.mktemp("finder") / "finder.pte"
    path.write_bytes(to_edge(methods).to_executorch().buffer)
    return str(path)


FEATURES, TEXT = "image_encoder()[0]", "text_encoder([1])"


def test_an_input_is_the_output_of_another_method(finder: str, capfd: pytest.CaptureFixture[str]) -> None:
    texts = f"[{TEXT}, text_encoder( [0] ), {TEXT}]"
    for given, expected in ((TEXT, [[[-FAR], [FAR]]]), (texts, [[[-FAR, FAR, -FAR], [FAR, -FAR, FAR]]])):
        assert main.main(["run", finder, "scores", FEATURES, given, "--json"]) == 0, capfd.readouterr().err
        [found] = json.loads(capfd.readouterr().out)
        assert found["values"] == expected


def test_boxes_of_one_call_are_drawn_with_the_scores_of_another(finder: str, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    assert main.main(["run", finder, "scores", FEATURES, TEXT, "-o", str(out)]) == 0
    root = ET.fromstring(out.read_text())
    [_, box] = root.findall(f"{SVG}rect")
    assert [float(box.get(key, "")) for key in ("width", "height")] == pytest.approx([51.2, 25.6], abs=0.1)
    assert [each.text for each in root.findall(f"{SVG}text")] == ["text 0 1.00"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["image_encoder()", TEXT], "`scores` takes 2 inputs, not 3"),
        ([FEATURES, "text_encoder([1])[1]"], "`text_encoder` has 1 output, counted from 0"),
        ([FEATURES, "text_encode([1])"], "did you mean `text_encoder`?"),
        ([FEATURES, "text_encoder([1], [2])"], "`text_encoder` takes 1 input, not 2"),
        ([FEATURES, "text_encoder([1]"], "not an input"),
        ([FEATURES, "text_encoder(nothing.npy)"], "nothing.npy: there is no such file"),
        ([FEATURES, "image_encoder()[1]"], "input 1 of `scores` has the shape [1, 2, 4]"),
        (
            [FEATURES, f"[{TEXT}, image_encoder()]"],
            "`image_encoder`, `image_encoder` cannot be joined",
        ),
    ],
)
def test_calls_that_do_not_fit_are_refused(
    given: list[str], said: str, finder: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["run", finder, "scores", *given]) == 2
    assert said in capfd.readouterr().err


def pictures(text: str) -> list[torch.Tensor]:
    """The pixels of each picture in an SVG, uint8 [rows, columns, 3 or 4]."""
    found = []
    for data in map(base64.b64decode, re.findall(r"base64,([^\"]+)", text)):
        width, height = struct.unpack(">2I", data[16:24])
        length = struct.unpack(">I", data[33:37])[0]
        lines = torch.frombuffer(bytearray(zlib.decompress(data[41 : 41 + length])), dtype=torch.uint8)
        found.append(lines.reshape(height, -1)[:, 1:].reshape(height, width, -1))
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


def test_areas_are_the_sum_of_masks_with_labels() -> None:
    """As in Mask2Former: two of three masks show a dog, one is of no object."""
    masks = torch.full((1, 3, 2, 4), -FAR)
    masks[0, 0, :, 2:], masks[0, 1, :, :2], masks[0, 2] = FAR, FAR, FAR
    scores = torch.tensor([[[-FAR, FAR, -FAR], [FAR, -FAR, -FAR], [-FAR, -FAR, FAR]]])
    text, _ = drawn([IMAGE], [scores, masks], LABELS)
    _, areas = pictures(text)
    assert [areas[0, column].tolist() for column in (0, 3)] == [[0x1F, 0x77, 0xB4], [0xD6, 0x27, 0x28]]


def test_the_best_mask_of_each_object_is_drawn() -> None:
    masks = torch.full((1, 1, 3, 2, 4), -1.0)
    masks[0, 0, 1, 0, 3] = masks[0, 0, 2, 1, 0] = 1
    text, note = drawn([IMAGE], [masks, torch.tensor([[[0.1, 0.8, 0.2]]])], None)
    _, mask = pictures(text)
    assert (mask[..., 3].tolist(), mask[0, 3].tolist()) == ([[0, 0, 0, 255], [0, 0, 0, 0]], [0x1F, 0x77, 0xB4, 255])
    assert [each.text for each in ET.fromstring(text).findall(f"{SVG}text")] == ["0.80"]
    assert note == ""


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
