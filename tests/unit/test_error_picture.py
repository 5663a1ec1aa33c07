"""The picture of an error in the README."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tools import write_error_picture


def test_lines_are_wrapped_and_escaped() -> None:
    drawn = write_error_picture.draw(["error: net.yaml:1:1: <forward> & more", "    " + "word " * 40])
    assert drawn == write_error_picture.draw(["error: net.yaml:1:1: <forward> & more", "    " + "word " * 40])
    texts = ["".join(each.itertext()) for each in ET.fromstring(drawn).iter() if each.tag.endswith("text")]
    assert texts[0] == f"$ {write_error_picture.SHOWN}"
    assert texts[1] == "error: net.yaml:1:1: <forward> & more"
    assert all(len(text) <= 100 for text in texts)
    assert len(texts) == 5
