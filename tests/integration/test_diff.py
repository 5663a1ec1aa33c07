"""The differences between two programs, and the first difference between two files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save

from etbuild.cli import main
from etkit.inspection.program_diff import first_difference

from .conftest import MANIFEST, MODEL, Build, Outcome
from .sharded_net import built, weights

MORE = MANIFEST.replace("  forward:", "  up:\n    entry: forward\n    example_inputs: [{shape: [3, 8]}]\n  forward:")


def diff(capfd: pytest.CaptureFixture[str], before: Path, after: Path, *options: str, expect: int = 0) -> str:
    capfd.readouterr()
    assert main.main(["diff", str(before), str(after), *options]) == expect
    printed = capfd.readouterr()
    return printed.err if expect == 2 else printed.out


def test_two_programs(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    before = build()
    after = build(MORE.replace("[2, 8]", "[4, 8]"), model=MODEL.replace(".relu()", ".relu().cumsum(1)"))
    text = diff(capfd, before.directory / "net.pte", after.directory / "net.pte")
    lines = text.splitlines()
    assert "methods:" in lines
    assert "  up: added" in lines
    assert "  forward: inputs: [float32[2, 8]] -> [float32[4, 8]]" in lines
    assert "  forward: operator aten::cumsum.out: 0 -> 1" in lines
    assert any(line.startswith("  the file size: ") and line.endswith(" bytes)") for line in lines)


def test_two_builds_by_their_directories(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    before = build(MANIFEST + "constant_methods: {n: 1}\n")
    after = build(MANIFEST + "constant_methods: {n: 2, m: 1}\n", model=MODEL.replace(".relu()", ".cumsum(1)"))
    text = diff(capfd, before.directory, after.directory)
    assert "constant methods:\n  m: added (1)\n  n: 1 -> 2\n" in text
    assert "  forward: fallback aten::cumsum: 0 -> 1" in text
    assert "net.pte sha256: " in text


def test_two_builds_in_shards_name_the_weights(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    before = built(build)
    after = built(build, content=weights(layer2_weight=1.0))
    text = diff(capfd, before.directory, after.directory)
    assert "  w.safetensors layers.2.weight: " in text
    assert text.count("net.all/") == text.count("net.all/2 sha256") == 1


def test_no_difference(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    pte = build().directory / "net.pte"
    assert diff(capfd, pte, pte, "--exit-code") == "no differences\n"
    assert json.loads(diff(capfd, pte.parent, pte.parent, "--json")) == []


def test_a_difference_for_machines(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    before, after = (build(MANIFEST + f"constant_methods: {{n: {number}}}\n").directory for number in (1, 2))
    found = json.loads(diff(capfd, before, after, "--json", "--exit-code", expect=1))
    assert {"path": ["constant methods", "n"], "kind": "changed", "before": 1, "after": 2} in found


def test_files_of_different_kinds_and_broken_files_cannot_be_compared(
    build: Build, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = build(MANIFEST + 'named_data: {all: {parameters: ["*"]}}\n').directory
    message = diff(capfd, made / "net.pte", made / "net.all.ptd", expect=2)
    assert "a program cannot be compared with named data" in message
    assert "cannot be compared with" in diff(capfd, made / "net.pte", made, expect=2)
    (tmp_path / "broken.pte").write_bytes((made / "net.pte").read_bytes()[:500])
    assert "damaged" in diff(capfd, made / "net.pte", tmp_path / "broken.pte", expect=2)
    assert "no such file" in diff(capfd, tmp_path / "none", made, expect=2)


def first(before: Outcome, after: Outcome, name: str) -> str | None:
    return first_difference(before.directory / name, after.directory / name)


def test_the_first_difference_has_artifact_section_and_field(build: Build) -> None:
    named = MANIFEST + 'named_data: {all: {parameters: ["*"]}}\nconstant_methods: {n: 1}\n'
    before, after = build(named), build(named.replace("n: 1", "n: 2"))
    assert first(before, before, "net.pte") is None
    found = first(before, after, "net.pte")
    assert found is not None
    assert found.startswith("`net.pte`: program.execution_plan[1].values[0].val.int_val: 1 and 2")
    assert first(before, after, "net.all.ptd") is None
    assert str(first(before, after, "net.report.json")).startswith("`net.report.json`: artifacts") is False
    other = build(named, model=MODEL.replace("return Net()", "torch.manual_seed(5); return Net()"))
    found = first(before, other, "net.all.ptd")
    assert found is not None
    assert "`net.all.ptd`: " in found
    (other.directory / "net.pte").unlink()
    assert first(before, other, "net.pte") == "`net.pte`: it was not made"


def test_the_first_difference_of_shards(build: Build, tmp_path: Path) -> None:
    before = built(build)
    after = built(build, content=weights(layer2_weight=1.0))
    found = first(before, after, "net.all")
    assert found is not None
    assert "only the" in found
    assert first(before, before, "net.all") is None
    (tmp_path / "cut.ptd").write_bytes(b"abc")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/cut.ptd").write_bytes(b"abd")
    assert first_difference(tmp_path / "cut.ptd", tmp_path / "other/cut.ptd") == "`cut.ptd`: byte 2 of 3"


def test_weights_of_equal_size_are_named_by_key_and_byte(build: Build) -> None:
    portable = MANIFEST.replace("[xnnpack]", "[]").replace("model:create", 'model:create"\n  weights: "w.safetensors')
    content = {"linear.weight": __import__("torch").zeros(4, 8), "linear.bias": __import__("torch").ones(4)}
    before = build(portable + 'named_data: {all: {parameters: ["*"]}}\n', files={"w.safetensors": save(content)})
    content["linear.bias"][1] = 2
    after = build(portable + 'named_data: {all: {parameters: ["*"]}}\n', files={"w.safetensors": save(content)})
    assert first(before, after, "net.all.ptd") == "`net.all.ptd`: linear.bias: byte 6 of 16"
