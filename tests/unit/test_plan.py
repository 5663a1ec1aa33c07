"""A plan holds what matters and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import InputError, Position
from etbuild.files import digests
from etbuild.manifest import validate
from etbuild.plan import plan

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  decode:
    example_inputs: [{shape: [1, 1], dtype: int64}]
  prefill:
    example_inputs: [{shape: [1, 8], dtype: int64}]
    dynamic_shapes: [[null, {dim: seq, max: 32}]]
defaults: {partitioners: [xnnpack]}
"""

REORDERED = """\
# A comment.
defaults:
  partitioners:   # another one
    - backend: xnnpack
name: net
methods:
  prefill:
    dynamic_shapes: [[null, {max: 32, min: 1, dim: seq}]]
    example_inputs: [{fill: zeros, dtype: int64, shape: [1, 8]}]
    strict: false
  decode: {entry: decode, example_inputs: [{shape: [1, 1], dtype: int64}], dynamic_shapes: [null]}
model: {seed: 0, kwargs: {}, factory: "model:create"}
schema: "executorch-model/v1"
"""


def reduce(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    return plan.reduce(validate.load(path).data)


def test_weights_are_blamed_where_they_stand() -> None:
    assert plan.weights_names(["a.pt"]) == {"a.pt": ("model", "weights")}
    assert plan.weights_names(["a.pt", "b.pt"])["b.pt"] == ("model", "weights", 1)


def test_comments_order_and_defaults_leave_no_trace(tmp_path: Path) -> None:
    assert digests.canonical_json(reduce(tmp_path, MANIFEST)) == digests.canonical_json(reduce(tmp_path, REORDERED))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: net", "name: other"),
        ("model:create", "model:make"),
        ("[1, 8]", "[1, 9]"),
        ("max: 32", "max: 33"),
        ("[xnnpack]", "[]"),
        ("[xnnpack]", "{prefill: [xnnpack]}"),
        ("[xnnpack]}", "[xnnpack], strict: true}"),
        ("  decode:", "  decode2:"),
    ],
)
def test_every_other_edit_changes_the_plan(tmp_path: Path, old: str, new: str) -> None:
    assert digests.digest(reduce(tmp_path, MANIFEST)) != digests.digest(reduce(tmp_path, MANIFEST.replace(old, new)))


def test_partitioners_by_method_leave_out_the_others(tmp_path: Path) -> None:
    reduced = reduce(tmp_path, MANIFEST.replace("[xnnpack]", "{prefill: [xnnpack]}"))
    assert reduced["methods"]["prefill"]["partitioners"] == [{"backend": "xnnpack", "options": {}}]
    assert reduced["methods"]["decode"]["partitioners"] == []


@pytest.mark.parametrize(
    "line",
    [
        "executorch: {segment_alignment: 64}",
        "executorch: {memory_planning: {alignment: 64}}",
        "share_mutable_buffers: true",
        "constant_methods: {get_max: 3}",
        'passes: {executorch: ["passes:last"]}',
    ],
)
def test_what_is_read_after_lowering_lowers_no_method_again(tmp_path: Path, line: str) -> None:
    before, after = (plan.lower_plan(reduce(tmp_path, text)) for text in (MANIFEST, MANIFEST + line))
    assert before != after
    assert plan.method_plan(before, "decode") == plan.method_plan(after, "decode")


@pytest.mark.parametrize("line", ['edge_compile: {preserve_ops: ["aten::linear"]}', 'passes: {edge: ["passes:edge"]}'])
def test_what_lowering_reads_is_in_the_plan_of_a_method(tmp_path: Path, line: str) -> None:
    before, after = (plan.lower_plan(reduce(tmp_path, text)) for text in (MANIFEST, MANIFEST + line))
    assert plan.method_plan(before, "decode") != plan.method_plan(after, "decode")


def test_passes_are_in_the_part_that_runs_them(tmp_path: Path) -> None:
    before, aten, edge = (
        reduce(tmp_path, text)
        for text in (MANIFEST, f'{MANIFEST}passes: {{aten: ["a:a"]}}', f'{MANIFEST}passes: {{edge: ["b:b"]}}')
    )
    assert plan.lower_plan(before) == plan.lower_plan(aten)
    assert plan.callables(plan.export_plan(aten)) == ["a:a", "model:create"]
    assert plan.callables(plan.export_plan(edge)) == ["b:b", "model:create"]
    assert plan.export_plan(edge)["lowering_callables"] == ["b:b"]
    assert plan.export_plan(aten)["lowering_callables"] == []


def test_a_target_that_agrees_passes(tmp_path: Path) -> None:
    reduced = reduce(tmp_path, MANIFEST)
    plan.check_expectations(
        reduced, {"name": ["net"], "methods": ["prefill", "decode"], "backends": None, "named_data": []}
    )


def test_a_target_that_differs_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        plan.check_expectations(reduce(tmp_path, MANIFEST), {"methods": ["decode"], "named_data": ["weights"]})
    assert 'write `methods = ["decode", "prefill"]` into the BUILD file' in str(error.value)
    assert "write `named_data = []` into the BUILD file" in str(error.value)


def test_canonical_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digests.canonical_json(float("nan"))


def test_positions_survive_json() -> None:
    positions = {(): Position("m.yaml", 1, 1), ("methods", "f", "example_inputs", 0): Position("m.yaml", 4, 7)}
    assert plan.positions_from_json(json.loads(json.dumps(plan.positions_to_json(positions)))) == positions


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"schema": "executorch-lower-plan/v1"}'])
def test_a_file_that_is_no_such_plan(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="not a plan"):
        plan.read(path, plan.EXPORT_SCHEMA)
