"""What is proposed in place of a file that is not there."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from etbuild.errors import InputError
from etbuild.key import declared
from etbuild.key.declared import Inputs


def _said(root: Path, name: str) -> str:
    with pytest.raises(InputError) as raised:
        Inputs(roots=[root]).find_data(name, ("model", "weights"))
    return str(raised.value)


def test_a_name_that_cannot_be_shown_is_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "net.\x1b[31msafetensors").touch()
    assert "did you mean" not in _said(tmp_path, "net.safetensor")
    (tmp_path / "net.safetensors").touch()
    assert "did you mean `net.safetensors`?" in _said(tmp_path, "net.safetensor")


def test_a_large_folder_is_not_compared_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / f"net{number}.bin").touch()
    compared: list[int] = []

    def noted(name: str, names: set[str], n: int) -> list[str]:
        compared.append(len(names))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    monkeypatch.setattr(declared, "_COMPARED", 3)
    _said(tmp_path, "net.bin")
    assert compared == [3]
