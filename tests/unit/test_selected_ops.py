"""`etbuild selected-ops` lists the kernels of programs for ExecuTorch's selective build, and finds what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild.cli import main
from tests.fuzz.seeds import DIRECTORY

PROGRAM = DIRECTORY / "pte-net"
"""Its method `add` calls kernels. A delegate computes `forward`."""
NEEDED = "- op: add.out\n- op: copy_\n- op: dim_order_ops::_to_dim_order_copy.out\n"


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The `selected_operators.yaml` of the program."""
    file = tmp_path_factory.mktemp("selection") / "selected_operators.yaml"
    assert main.main(["selected-ops", str(PROGRAM), "-o", str(file)]) == 0
    content: dict[str, Any] = yaml.safe_load(file.read_bytes())
    return content


def check(kernels: object, tmp_path: Path, *options: str) -> int:
    file = tmp_path / "kernels.yaml"
    file.write_text(kernels if isinstance(kernels, str) else yaml.safe_dump(kernels))
    return main.main(["selected-ops", str(PROGRAM), "--kernels", str(file), *options])


def test_kernels_of_each_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["selected-ops", str(PROGRAM), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        str(PROGRAM): {
            "add": {
                "aten::add.out": ["float32"],
                "aten::copy_": ["float32"],
                "dim_order_ops::_to_dim_order_copy.out": ["float32", "int64"],
            },
            "forward": {},
            "get_size": {},
        }
    }


def test_the_selection_is_what_executorch_selects(selection: dict[str, Any], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.yaml"
    command = [sys.executable, "-m", "executorch.codegen.tools.gen_oplist", f"--model_file_path={PROGRAM}"]
    subprocess.run([*command, f"--output_path={theirs}"], check=True, capture_output=True)
    plain = yaml.safe_load(theirs.read_bytes())
    assert selection["operators"].keys() == plain["operators"].keys()
    for operator in selection["operators"].values():
        assert operator["debug_info"] == [PROGRAM.name]
    assert selection["et_kernel_metadata"] == {op: sorted(keys) for op, keys in plain["et_kernel_metadata"].items()}


def test_two_programs_have_one_selection(selection: dict[str, Any], tmp_path: Path) -> None:
    other = tmp_path / "other.pte"
    other.write_bytes(PROGRAM.read_bytes())
    out = tmp_path / "out.yaml"
    assert main.main(["selected-ops", str(other), str(PROGRAM), "-o", str(out)]) == 0
    both = yaml.safe_load(out.read_bytes())
    assert both["et_kernel_metadata"] == selection["et_kernel_metadata"]
    assert {tuple(operator["debug_info"]) for operator in both["operators"].values()} == {("other.pte", "pte-net")}


def test_a_selection_has_all_that_its_program_needs(selection: dict[str, Any], tmp_path: Path) -> None:
    assert check(selection, tmp_path) == 0


def test_a_missing_operator_is_named_with_its_methods(
    selection: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operators = {name: operator for name, operator in selection["operators"].items() if name != "aten::add.out"}
    assert check({**selection, "operators": operators}, tmp_path) == 3
    error = capsys.readouterr().err
    assert "a kernel that is needed is missing\n    `aten::add.out` (pte-net: add)\n" in error


def test_a_missing_dtype_is_named(
    selection: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {**selection["et_kernel_metadata"], "aten::add.out": ["v1/7;0|7;0"]}
    assert check({**selection, "et_kernel_metadata": keys}, tmp_path) == 3
    assert "`aten::add.out` with float32 (pte-net: add)" in capsys.readouterr().err


def test_lines_of_the_model_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        "schema": "executorch-lines/v1",
        "places": [["model.py", 16, "add", "return self.state + 1"]],
        "methods": {"add": [["add", "aten.add.Tensor", 0]]},
    }
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    assert check(NEEDED.replace("add.out", "sub.out"), tmp_path, "--lines", str(tmp_path / "lines.json")) == 3
    assert "at model.py:16, in add: `return self.state + 1`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kernels", "code"),
    [
        ("include_all_operators: true", 0),
        (NEEDED, 0),
        (NEEDED.replace("op: add.out", "func: aten::add.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)"), 0),
        (NEEDED + "  kernels:\n  - {arg_meta: null, kernel_name: x}\n", 0),
        (NEEDED.replace("add.out", "other::add.out"), 3),
        ("- op: add.out", 3),
        ("operators: {}", 3),
        ("one: two", 2),
        ("- op: 3", 2),
        ("- 3", 2),
        ("operators: [aten::add.out]", 2),
        ("{operators: {a: {}}, et_kernel_metadata: {a: [v2/6;0]}}", 2),
        ("3", 2),
    ],
)
def test_forms_of_lists_of_kernels(kernels: str, code: int, tmp_path: Path) -> None:
    assert check(kernels, tmp_path) == code


def test_a_kernel_for_some_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_doubles = "  type_alias: {T0: [Double, Long]}\n  kernels:\n  - {arg_meta: {self: [T0, D0]}}\n"
    assert check(NEEDED + of_doubles, tmp_path) == 3
    assert "`dim_order_ops::_to_dim_order_copy.out` with float32 (pte-net: add)" in capsys.readouterr().err
    assert check(NEEDED + of_doubles.replace("Double", "Double, Float"), tmp_path) == 0


def test_kernels_of_the_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    """Needs no PyTorch. A process of its own: two libraries of ExecuTorch cannot be in one process."""
    code = "import sys; from etbuild.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "selected-ops", str(PROGRAM), "--runtime", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 False\n")


@pytest.mark.parametrize("content", [b"", b"text", b"\0\0\0\0ET12", b"\x10\0\0\0ET12" + bytes(100)])
def test_what_is_no_program(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.pte").write_bytes(content)
    assert main.main(["selected-ops", str(tmp_path / "net.pte")]) == 2
    assert "net.pte" in capsys.readouterr().err


def test_a_program_that_executorch_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ExecuTorch's reader is native code and may end its process."""
    damaged = bytearray(PROGRAM.read_bytes())
    found = 0
    for place in range(40, len(damaged), 97):
        (tmp_path / "net.pte").write_bytes(damaged[:place] + b"\xff\x7f\xff\x7f" + damaged[place + 4 :])
        code = main.main(["selected-ops", str(tmp_path / "net.pte"), "-o", str(tmp_path / "out.yaml")])
        assert code in (0, 1, 2)
        found += code != 0
        assert "Traceback" not in capsys.readouterr().err
    assert found
