"""Digests of weights, one for each tensor, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from etbuild.errors import InputError
from etbuild.model.tensor_digests import tensor_digests


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], **more: Any) -> Path:
    """Writes a safetensors file as its format requires."""
    header: dict[str, Any] = {}
    content = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps({**header, **more}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


A, B = ("F32", [2], b"\1" * 8), ("I8", [3], b"abc")


def digests(path: Path) -> dict[str, str]:
    return tensor_digests("w.safetensors", path)


def test_a_changed_byte_changes_only_the_digest_of_its_tensor(tmp_path: Path) -> None:
    one = digests(write(tmp_path / "one", {"a": A, "b": B}))
    two = digests(write(tmp_path / "two", {"a": A, "b": ("I8", [3], b"abd")}, __metadata__={"format": "pt"}))
    assert one["a"] == two["a"]
    assert one["b"] != two["b"]


def test_dtype_and_shape_are_in_the_digest(tmp_path: Path) -> None:
    made = digests(write(tmp_path / "w", {"a": A, "b": ("I32", [2], A[2]), "c": ("F32", [1, 2], A[2]), "d": A}))
    assert len(set(made.values())) == 3
    assert made["a"] == made["d"]


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    assert len(digests(write(tmp_path / "w", {"scalar": ("F32", [], b"\0" * 4), "none": ("F32", [0], b"")}))) == 2


def test_a_tensor_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """safetensors gives the last one."""
    path = write(tmp_path / "w", {"b": A}, a={"dtype": "I8", "shape": [8], "data_offsets": [0, 8]})
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"a"'))
    assert [*load_file(path)] == ["a"]
    with pytest.raises(InputError, match=r'cannot read `w\.safetensors`: .*the key "a" occurs twice'):
        digests(path)


def test_a_file_of_any_damage_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "w", {"a": A, "b": B}).read_bytes()
    damaged = [b"", whole[:4], whole[:30], whole[:-1], b"\xff" * 8 + whole[8:], whole.replace(b"{", b"[", 1)]
    damaged += [whole.replace(b'"data_offsets"', b'"data_offset5"'), whole.replace(b"[0, 8]", b'"0, 8"')]
    for number, content in enumerate(damaged):
        path = tmp_path / f"damaged{number}"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read `w\.safetensors`"):
            digests(path)
