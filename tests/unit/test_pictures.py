"""The drawn pictures of the pages: they can be read on a phone, on light and on dark ground, and by a screen reader."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import frame
from benchmarks.incremental.plot import drawn

DOCS = Path(__file__).parents[2] / "docs"
DRAWN = [DOCS / "flow.svg", *(DOCS / "images" / f"{name}.svg" for name in ("sharing", "pte", "edit-cost"))]
PHONE = 328
"""The width of a page's text on a phone of 360 pixels, in pixels."""


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_picture_can_be_read_everywhere(path: Path) -> None:
    text = path.read_text("utf-8")
    root = ElementTree.fromstring(text)
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', text)]
    assert min(sizes) * min(1, PHONE / float(root.attrib["width"])) >= 11
    assert "prefers-color-scheme: dark" in text
    assert root.attrib["font-family"].startswith("system-ui")
    assert all(root.findtext(f"{{*}}{tag}") for tag in ("title", "desc"))


def test_another_figure_is_another_picture() -> None:
    results = frame.read("incremental")
    before = drawn(results)
    results["sections"]["edits"][0]["s"] += 10
    assert drawn(results) != before
