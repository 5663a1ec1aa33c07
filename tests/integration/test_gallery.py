"""The gallery's programs compute what eager PyTorch computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import gallery

pytest.importorskip("transformers")


@pytest.mark.long
@pytest.mark.parametrize("name", gallery.NAMES)
def test_a_program_computes_what_eager_pytorch_computes(name: str, tmp_path: Path) -> None:
    measured = gallery.measure(name, tmp_path)
    assert measured.largest > gallery.LEAST_OUTPUT
    assert measured.difference < gallery.TOLERANCE


def test_the_page_lists_every_manifest_and_none_is_wrong() -> None:
    text = gallery.PAGE.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert [row.split("]")[0].removeprefix("| [") for row in rows] == gallery.NAMES
    assert all(row.endswith("| right |") for row in rows)
    assert len(rows) >= 40
