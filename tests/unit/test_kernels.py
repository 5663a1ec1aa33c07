"""`etbuild kernels` writes C++ that registers just the selected kernels, with their dtypes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild.cli import main
from etkit.native.kernels.registration import DECLARATIONS, DTYPES, FILES, SOURCE

FLOAT, HALF, LONG = "v1/6;0|6;0", "v1/5;0|5;0", "v1/4;0|4;0"


def selection(directory: Path, **operators: list[str]) -> Path:
    """A `selected_operators.yaml`. The names of operators have `__` for `::`, and get `.out`."""
    named = {f"{name.replace('__', '::')}.out": keys for name, keys in operators.items()}
    file = directory / "selected_operators.yaml"
    made = {"operators": {name: {"debug_info": ["net.pte"]} for name in named}, "et_kernel_metadata": named}
    file.write_text(yaml.safe_dump({**made, "include_all_operators": False}))
    return file


def written(file: Path, *options: str, expect: int = 0) -> dict[str, str]:
    made = file.parent / "made"
    assert main.main(["kernels", str(file), "-o", str(made), *options]) == expect
    return {name: (made / name).read_text() for name in FILES} if expect == 0 else {}


def registered(made: dict[str, str]) -> list[str]:
    return re.findall(r'Kernel\(\s*"(.*?)"', made[SOURCE])


def cases(made: dict[str, str]) -> dict[str, list[str]]:
    """The dtypes of each operator."""
    lines = re.findall(r'operator_name, "(.*?)"\) == 0 \? (.*) :$', made[DTYPES], re.MULTILINE)
    return {name: re.findall(r"ScalarType::(\w+)", checks) for name, checks in lines}


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = written(selection(tmp_path, aten__relu=[FLOAT], aten__mm=[FLOAT]))
    assert capsys.readouterr().out.split() == [str(tmp_path / "made" / name) for name in FILES]
    assert registered(made) == ["aten::mm.out", "aten::relu.out"]
    assert "torch::executor::native::relu_out(context, self_base, out_base);" in made[SOURCE]
    assert re.findall(r"Tensor & (\w+)\(torch::executor::KernelRuntimeContext", made[DECLARATIONS]) == [
        "mm_out",
        "relu_out",
    ]
    assert cases(made) == {"mm.out": ["Float"], "relu.out": ["Float"]}
    assert str(tmp_path) not in "".join(made.values())


def test_dtypes_that_kernels_compute_in(tmp_path: Path) -> None:
    """The portable kernels compute float16 in float32, and some integers in float64."""
    made = written(
        selection(tmp_path, aten__relu=[HALF], aten__mm=[HALF, FLOAT], aten__add=[LONG], aten__sin=["default"])
    )
    assert cases(made) == {"add.out": ["Double", "Long"], "mm.out": ["Float", "Half"], "relu.out": ["Float", "Half"]}


def test_the_first_list_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("- op: relu.out\n  kernels: [{arg_meta: null, kernel_name: mine::relu}]\n")
    kernels = "- op: {}.out\n  kernels: [{{arg_meta: null, kernel_name: theirs::{}}}]\n"
    own = "- func: my::op.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)\n  variants: function\n"
    second.write_text(
        kernels.format("relu", "relu")
        + kernels.format("mm", "mm")
        + own
        + "  kernels: [{arg_meta: null, kernel_name: my::op}]\n"
    )
    file = selection(tmp_path, aten__relu=[FLOAT], aten__mm=[FLOAT], my__op=[FLOAT])
    made = written(file, "--functions", str(first), "--functions", str(second))
    assert registered(made) == ["aten::mm.out", "aten::relu.out", "my::op.out"]
    calls = re.findall(r"(\w+::native::\w+)\(context", made[SOURCE])
    assert calls == ["theirs::native::mm", "mine::native::relu", "my::native::op"]


def test_dtypes_of_a_later_list_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        "- op: relu.out\n  type_alias: {T: [Float]}\n  dim_order_alias: {D: [0]}\n"
        "  kernels: [{arg_meta: {self: [T, D], out: [T, D]}, kernel_name: mine::relu}]\n"
    )
    second.write_text("- op: relu.out\n  kernels: [{arg_meta: null, kernel_name: theirs::relu}]\n")
    file = selection(tmp_path, aten__relu=[FLOAT, HALF])
    written(file, "--functions", str(first), "--functions", str(second), expect=3)
    assert "`aten::relu.out` with float16 (net.pte)" in capsys.readouterr().err
    assert registered(written(file, "--functions", str(second), "--functions", str(first))) == ["aten::relu.out"]


@pytest.mark.parametrize("described", ["{}", "{debug_info: []}", "{debug_info: [1, 2]}"])
def test_a_missing_kernel_of_an_odd_selection(
    described: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "selected_operators.yaml"
    file.write_text(f'operators: {{"aten::nothing.out": {described}}}\n')
    written(file, expect=3)
    assert "`aten::nothing.out` (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("operators.aten::relu.out", "3"),
        ("operators.aten::relu.out", "null"),
        ("operators.aten::relu.out.debug_info", "5"),
        ("operators.aten::relu.out.is_root_operator", "5"),
        ("operators.aten::relu.out.odd", "true"),
        ("operators", "null"),
        ("et_kernel_metadata", "[]"),
        ("et_kernel_metadata.aten::relu.out", "default"),
        ("et_kernel_metadata.aten::relu.out[0]", "[5]"),
        ("et_kernel_metadata.aten::relu.out[0]", '["v2/6;0"]'),
        ("kernel_metadata", "[]"),
        ("build_features", "3"),
        ("include_all_operators", "3"),
        ("odd", "3"),
    ],
)
def test_a_mistake_in_a_selection_is_told_with_its_place(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top, *below = key.removesuffix("[0]").replace("aten::relu.out", "NAME").split(".")
    for name in reversed(below):
        value = f"{{{name}: {value}}}".replace("NAME", '"aten::relu.out"')
    lines = {"operators": '{"aten::relu.out": {}}'} | {top: value}
    file = tmp_path / "selected_operators.yaml"
    file.write_text("".join(f"{name}: {text}\n" for name, text in lines.items()))
    written(file, expect=2)
    said = capsys.readouterr().err
    line = [*lines].index(top) + 1
    assert re.match(rf"error: {re.escape(str(file))}:{line}:\d+: {re.escape(key)}: ", said), said


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_file_is_not_called_a_manifest(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "selected_operators.yaml"
    file.write_text(text)
    written(file, expect=2)
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}:1:1: the file is empty\n")
    assert "manifest" not in said


def test_one_name_in_two_namespaces(tmp_path: Path) -> None:
    """ExecuTorch's generator compares names without their namespaces."""
    functions = tmp_path / "functions.yaml"
    functions.write_text(
        "".join(
            f"- func: {name}::add.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)\n"
            f"  kernels: [{{arg_meta: null, kernel_name: {name}::add}}]\n"
            for name in ("my", "your", "their")
        )
        + "- op: add.out\n  kernels: [{arg_meta: null, kernel_name: ours::add}]\n"
    )
    file = selection(tmp_path, my__add=[FLOAT], aten__add=[FLOAT], their__add=[FLOAT], your__add=[FLOAT])
    made = written(file, "--functions", str(functions))
    assert sorted(registered(made)) == ["aten::add.out", "my::add.out", "their::add.out", "your::add.out"]
    assert len(set(re.findall(r"const Kernel (\w+)\[\]", made[SOURCE]))) == 4
    assert len(set(re.findall(r"const auto (\w+) =", made[SOURCE]))) == 4
    assert len(re.findall(r" add\(torch::executor::KernelRuntimeContext", made[DECLARATIONS])) == 4


@pytest.mark.parametrize("more", ["", 'et_kernel_metadata: {"aten::relu.out": ["v1/6;0|6;0"]}\n'])
def test_all_operators(more: str, tmp_path: Path) -> None:
    """Of ExecuTorch's two lists, which both have an `add.out`."""
    file = tmp_path / "selected_operators.yaml"
    file.write_text(f"include_all_operators: true\n{more}")
    found = registered(written(file))
    assert {"aten::add.out", "aten::relu.out", "quantized_decomposed::add.out"} <= {*found}
    assert len(found) == len({*found})


def test_a_kernel_that_the_selection_has_no_dtypes_for_gets_all(tmp_path: Path) -> None:
    """Also if there is one for some dtypes only."""
    functions = tmp_path / "functions.yaml"
    functions.write_text(
        "- op: relu.out\n  type_alias: {T: [Float]}\n  dim_order_alias: {D: [0]}\n"
        "  kernels: [{arg_meta: {self: [T, D], out: [T, D]}, kernel_name: mine::relu}]\n"
    )
    for text in ('operators: {"aten::relu.out": {}}', "include_all_operators: true"):
        for more in ("", '\net_kernel_metadata: {"aten::relu.out": [default]}', "\net_kernel_metadata: {}"):
            file = tmp_path / "selected_operators.yaml"
            file.write_text(text + more)
            assert registered(written(file, "--functions", str(functions))) == ["aten::relu.out"]


def test_kernels_of_the_runtime_itself_are_not_registered(tmp_path: Path) -> None:
    file = selection(tmp_path, aten__relu=[FLOAT])
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    for name in ("aten::sym_size.int", "executorch_prim::add.Scalar"):
        content["operators"][name] = {"debug_info": ["net.pte"]}
    file.write_text(yaml.safe_dump(content))
    assert registered(written(file)) == ["aten::relu.out"]


def test_programs_without_kernels(tmp_path: Path) -> None:
    made = written(selection(tmp_path))
    assert registered(made) == []
    assert cases(made) == {}


def test_a_missing_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = tmp_path / "functions.yaml"
    functions.write_text("- op: relu.out\n  kernels: [{arg_meta: null, kernel_name: mine::relu}]\n")
    file = selection(tmp_path, aten__relu=[FLOAT], aten__mm=[FLOAT])
    written(file, "--functions", str(functions), expect=3)
    error = capsys.readouterr().err
    assert "functions.yaml: a kernel that is selected is missing\n" in error
    assert "`aten::mm.out` (net.pte)" in error
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("- op: relu.out\n", 2, "a list of kernels and no selection"),
        ("operators: 3\n", 2, "operators: expected a mapping, got 3"),
        ("{operators: {aten::relu.out: {}}, et_kernel_metadata: {aten::relu.out: [v1/99;0]}}", 2, "no dtype 99"),
    ],
)
def test_another_file(text: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(text)
    written(file, expect=code)
    assert message in capsys.readouterr().err


def test_an_operator_that_pytorch_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = tmp_path / "functions.yaml"
    functions.write_text("- op: nothing.out\n  kernels: [{arg_meta: null, kernel_name: mine::nothing}]\n")
    written(selection(tmp_path, aten__nothing=[FLOAT]), "--functions", str(functions), expect=2)
    error = capsys.readouterr().err
    assert "`aten::nothing.out`" in error
    assert "`func:`" in error
    assert "Traceback" not in error
