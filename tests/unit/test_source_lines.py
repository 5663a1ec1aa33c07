"""The lines of a model's source, which messages name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etbuild.export.layout import ExportFiles
from etbuild.inputs.source_lines import NO_LINES, Line, SourceLines, shown

INSTALLED = f"{sys.path[-1]}/package/layers.py"


def node(name: str, target: str, *frames: tuple[str, int, str, str], **meta: Any) -> SimpleNamespace:
    """A node of a graph with the stack trace that torch.export writes, the innermost frame last."""
    trace = "".join(f'File "{file}", line {line}, in {function}\n    {text}\n' for file, line, function, text in frames)
    return SimpleNamespace(op="call_function", name=name, target=target, meta={"stack_trace": trace, **meta})


def lines_of(*nodes: SimpleNamespace) -> SourceLines:
    module = SimpleNamespace(graph=SimpleNamespace(nodes=nodes))
    programs: Any = {"forward": SimpleNamespace(graph_module=SimpleNamespace(modules=lambda: [module]))}
    return SourceLines.of_programs(programs, {"/home/me/a/model.py": "a/model.py"}.get)


def place(number: int, text: str = "") -> tuple[str, int, str, str]:
    return "/home/me/a/model.py", number, "forward", text


def test_the_innermost_declared_line_is_named() -> None:
    inside = (INSTALLED, 3, "helper", "return y")
    lines = lines_of(node("mul", "aten.mul.Tensor", place(4), place(7, "x * 2"), inside))
    assert lines.of_node("forward", "mul") == (Line("a/model.py", 7, "forward", "x * 2"),)
    assert lines.of_node("forward", "add") == lines.of_node("other", "mul") == ()


def test_a_line_of_an_installed_package_has_its_path_in_the_package() -> None:
    lines = lines_of(node("mul", "aten.mul.Tensor", ("/elsewhere/x.py", 1, "f", ""), (INSTALLED, 3, "helper", "y")))
    assert lines.of_node("forward", "mul") == (Line("package/layers.py", 3, "helper", "y"),)


@pytest.mark.parametrize(
    "file",
    [
        "/elsewhere/x.py",
        "<eval_with_key>.3",
        f"{sys.path[-1]}/etbuild/export/x.py",
        f"{sys.path[-1]}/etplugins/lora/x.py",
    ],
)
def test_other_files_are_not_named(file: str) -> None:
    assert lines_of(node("mul", "aten.mul.Tensor", (file, 1, "f", "x"))).of_node("forward", "mul") == ()


def test_a_node_is_known_by_the_name_that_it_had_first() -> None:
    first = SimpleNamespace(name="silu", from_node=[])
    later = SimpleNamespace(name="sigmoid", from_node=[first])
    lines = lines_of(node("mul_1", "aten.mul.Tensor", place(1), from_node=[later]))
    assert lines.of_node("forward", "silu")
    assert not lines.of_node("forward", "mul_1")


@pytest.mark.parametrize(
    ("called", "asked"),
    [
        ("aten.sort.default", "aten::sort.values"),
        ("aten.sort.default", "aten.sort.default"),
        ("aten.view.default", "aten::view_copy.out"),
        ("aten.add_.Tensor", "aten::add.out"),
        ("aten.to.dtype", "dim_order_ops::_to_dim_order_copy.out"),
        ("demo.twice.default", "demo::twice"),
    ],
)
def test_a_call_is_found_by_any_name_of_its_operator(called: str, asked: str) -> None:
    lines = lines_of(node("a", called, place(1)), node("b", "aten.mul.Tensor", place(2)))
    assert [line.number for line in lines.of_operator("forward", asked)] == [1]


def test_an_overload_that_is_called_wins_over_others() -> None:
    lines = lines_of(node("a", "aten.mul.Scalar", place(1)), node("b", "aten.mul.Tensor", place(2)))
    assert [line.number for line in lines.of_operator("forward", "aten.mul.Tensor")] == [2]
    assert [line.number for line in lines.of_operator("forward", "aten::mul.out")] == [1, 2]
    assert lines.of_operator("forward", "demo.mul.Tensor") == ()


def test_lines_are_read_back_from_their_file(tmp_path: Path) -> None:
    nodes = [node(f"mul_{number}", "aten.mul.Tensor", place(number // 2 + 1, "x * 2")) for number in range(8)]
    content: Any = lines_of(*nodes).to_json()
    assert len(content["places"]) == 4
    (tmp_path / "lines.json").write_text(json.dumps(content))
    read = ExportFiles.below(tmp_path).lines
    assert read.of_node("forward", "mul_7") == (Line("a/model.py", 4, "forward", "x * 2"),)
    text = shown(read.of_operator("forward", "aten.mul.Tensor"))
    assert text is not None
    assert text.splitlines() == [
        *(f"at a/model.py:{number}, in forward: `x * 2`" for number in (1, 2, 3)),
        "and 1 more",
    ]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"schema": "executorch-lines/v1", "places": [], "methods": {"f": [["a", "b", 0]]}}',
        '{"schema": "executorch-lines/v1", "places": [["a", 1, "f", "t"]], "methods": {"f": [["a", "b", -1]]}}',
        '{"schema": "executorch-lines/v2", "places": [], "methods": {}}',
    ],
)
def test_a_damaged_file_has_no_lines(tmp_path: Path, content: str) -> None:
    (tmp_path / "lines.json").write_text(content)
    assert SourceLines.read(tmp_path / "lines.json").of_node("f", "a") == ()


def test_no_lines_say_nothing() -> None:
    assert shown(NO_LINES.of_operator("forward", "aten.mul.Tensor")) is None
    assert shown([Line("m.py", 1, "f", "x" * 1000)]) == f"at m.py:1, in f: `{'x' * 120} ...`"
    assert shown([Line("m.py", 1, "f", "")]) == "at m.py:1, in f"
