"""`etbuild cpp` writes C++ that compiles, and refuses what C++ cannot express. tests/bazel/test_cpp.py runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.errors import InputError
from etkit.native.cpp import embed, wrapper
from tests.helpers.builds import make_report, write_build
from tests.helpers.cpp_headers import TENSOR, header


def test_a_static_tensor_is_a_type() -> None:
    text = header([TENSOR, {**TENSOR, "dtype": "int64", "shape": []}], [TENSOR])
    assert "// (float32[1, 8], int64[]) -> (float32[1, 8])" in text
    assert "forward(const etbuild::Input<float, 1, 8>& input0, const etbuild::Input<int64_t>& input1)" in text
    assert "etbuild::Result<std::tuple<etbuild::Output<float, 2>>>" in text


def test_a_dynamic_tensor_has_largest_sizes() -> None:
    text = header([{**TENSOR, "dynamic": True}], [{**TENSOR, "dynamic": True}])
    assert "const etbuild::DynamicInput<float, 1, 8>& input0" in text
    assert "// (float32[<=1, <=8])" in text


def test_other_arguments_are_constants_of_the_program() -> None:
    values = [{"type": "int", "value": 3}, {"type": "bool", "value": True}, {"type": "null", "value": None}]
    text = header([TENSOR, *values], [TENSOR])
    assert (
        "etbuild::EValue(static_cast<int64_t>(3)), etbuild::EValue(static_cast<bool>(true)), etbuild::EValue()" in text
    )
    assert "forward(const etbuild::Input<float, 1, 8>& input0)" in text


def test_constant_methods_are_members() -> None:
    text = header([], [TENSOR], get_max_seq_len=128, use_kv_cache=True, get_scale=0.5, get_eos_ids=[1])
    assert "static constexpr int64_t get_max_seq_len = 128;" in text
    assert "static constexpr bool use_kv_cache = true;" in text
    assert "static constexpr double get_scale = 0.5;" in text
    assert "get_eos_ids" not in text  # a list is no constant of C++: it can be had through `module()`


@pytest.mark.parametrize(("method", "member"), [("delete", "delete_"), ("load", "load_"), ("decode", "decode")])
def test_names_that_cpp_reserves(method: str, member: str) -> None:
    assert f"> {member}(" in header([TENSOR], [TENSOR], method)


@pytest.mark.parametrize(
    ("inputs", "outputs", "method", "message"),
    [
        ([TENSOR], [TENSOR], "größe", "C\\+\\+ cannot name the method"),
        ([{**TENSOR, "dtype": "complex64"}], [TENSOR], "forward", "a tensor of complex64"),
        ([{"type": "string", "value": "x"}], [TENSOR], "forward", "takes string"),
        ([TENSOR], [{"type": "int", "value": 3}], "forward", "returns 3, which is not a tensor"),
    ],
)
def test_what_cpp_cannot_express(inputs: list[Any], outputs: list[Any], method: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        header(inputs, outputs, method)


@pytest.mark.parametrize("name", ["net", "net.ios", "3d", "class", "tiny-lm_2", "ü", "a b"])
def test_names_of_programs(name: str) -> None:
    assert wrapper.class_name(name).isidentifier()
    assert wrapper.file_stem(name).isidentifier()
    assert wrapper.namespace_of(name, None) == wrapper.file_stem(name)


@pytest.mark.parametrize("given", ["a::", "::a", "a b", "3", "class", "a::int", ""])
def test_namespaces_that_are_none(given: str) -> None:
    with pytest.raises(InputError, match="not a namespace"):
        wrapper.namespace_of("net", given)


def test_hostile_strings_stay_strings() -> None:
    assert wrapper.literal('"); system("x"); //\n??/\\') == '"\\042); system(\\042x\\042); //\\012\\077\\077/\\134"'


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """The index of a build of 11 bytes."""
    return write_build(tmp_path / "build", "net", pte=b"program 123", report=make_report(1, 1, 1))


def test_an_embedded_program(build: Path, tmp_path: Path) -> None:
    assert main.main(["cpp", str(build), "-o", str(tmp_path / "out"), "--embed", "--namespace", "app::models"]) == 0
    source = (tmp_path / "out/net_data.cc").read_text()
    assert "namespace app::models {" in source
    assert "kProgram, 11u" in source
    assert f"{int.from_bytes(b'program ', 'little'):#x}u,{int.from_bytes(b'123', 'little'):#x}u," in source


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--embed", "--max-bytes", "10"], "at most 10 are embedded"),
        (["--max-bytes", "10"], "goes with --embed"),
        (["--namespace", "a b"], "not a namespace"),
        (["--stem", "../net"], "--stem ../net: not the name of a file"),
        (["--stem", "/tmp/net"], "not the name of a file"),
        (["--stem", "a\nb"], "not the name of a file"),
    ],
)
def test_wrong_options(
    options: list[str], message: str, build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["cpp", str(build), "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_build(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (build.parent / "net.pte").write_bytes(b"another program")
    assert main.main(["cpp", str(build), "-o", str(tmp_path), "--embed"]) == 2
    assert "not the file that its index names" in capsys.readouterr().err


def test_two_files_of_named_data_cannot_be_embedded(build: Path) -> None:
    index = json.loads(build.read_text())
    index["artifacts"] += [
        {"kind": "named_data", "file": f"net.{tag}.ptd", "size": 1, "sha256": "0" * 64} for tag in ("a", "b")
    ]
    with pytest.raises(InputError, match="ExecuTorch takes one from memory"):
        embed.files(index, build.parent, "net")
