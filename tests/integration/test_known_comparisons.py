"""Methods that did not change are not compared again, and a method of which anything changed is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import PTEFile
from executorch.exir.schema import Tensor

from etbuild.cli import main
from etbuild.emit import emit_program
from etbuild.emit import merge as merging
from etbuild.files import program_file
from etplugins.comparison import program_parts

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 3.0))

    def one(self, x):
        return self.first(x).relu()

    def two(self, x):
        return self.second(x).tanh()

    def three(self, x):
        return (x + 2) * self.scale


def create():
    torch.manual_seed(0)
    return Net().eval()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  one: {example_inputs: [{shape: [2, 4]}], partitioners: [xnnpack]}
  two: {example_inputs: [{shape: [2, 4]}], partitioners: [xnnpack]}
  three: {example_inputs: [{shape: [2, 4]}]}
"""
ALL = {"one": "runtime", "two": "runtime", "three": "runtime"}
KNOWN = dict.fromkeys(ALL, "cached")
BY_MODEL = dict.fromkeys(ALL, "model")


class Project:
    """A program with three methods, and a cache. It was built once."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.capfd = root, capfd
        self.write()
        assert self.build() == ALL

    def write(self, model: str = MODEL, manifest: str = MANIFEST) -> None:
        (self.root / "model.py").write_text(model, "utf-8")
        (self.root / "model.yaml").write_text(manifest, "utf-8")

    def build(self, expect: int = 0) -> dict[str, str]:
        """Builds, and returns with what each method was compared."""
        self.capfd.readouterr()
        where = ["--cache-dir", str(self.root / "cache"), "-o", str(self.root / "out")]
        assert main.main(["build", str(self.root / "model.yaml"), *where, "--json"]) == expect
        said = self.capfd.readouterr()
        self.err = said.err
        return dict(json.loads(said.out)["comparisons"]) if expect == 0 else {}


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    return Project(tmp_path, capfd)


def test_an_edit_of_one_method_compares_one(project: Project) -> None:
    project.write(MODEL.replace(".tanh()", ".sigmoid()"))
    assert project.build() == {**BY_MODEL, "two": "runtime"}
    project.write(manifest=MANIFEST.replace("[{shape: [2, 4]}]}\n", "[{shape: [3, 4]}]}\n"))
    assert project.build() == {**KNOWN, "three": "runtime"}
    project.write(MODEL.replace("self.scale", "self.scale  # threefold"))
    assert project.build() == BY_MODEL


def test_the_settings_of_one_method_compare_one(project: Project) -> None:
    checks = "checks: {compare: {methods: {one: {tolerance: {rtol: 0.01}}}}}\n"
    project.write(manifest=MANIFEST + checks)
    assert project.build() == {**KNOWN, "one": "runtime"}
    project.write(manifest=MANIFEST + "checks: {compare: {work: 1000}}\n")
    assert project.build() == ALL


def test_other_weights_compare_all(project: Project) -> None:
    project.write(MODEL.replace("manual_seed(0)", "manual_seed(1)"))
    assert project.build() == ALL


def test_tables_in_a_file_of_their_own_count_for_all(project: Project) -> None:
    tables = MODEL.replace("nn.Linear(4, 4), nn.Linear(4, 4)", "nn.Embedding(8, 4), nn.Embedding(8, 4)")
    tables = tables.replace('        self.register_buffer("scale", torch.full((4,), 3.0))\n', "")  # no other constants
    for old, new in ((".relu()", ""), ("(x).tanh()", "(x) + self.first(x)"), ("(x + 2) * self.scale", "x + x")):
        tables = tables.replace(old, new)
    manifest = MANIFEST.replace("4]}], partitioners: [xnnpack]", "4], dtype: int64}]")
    named = manifest + 'named_data: {tables: {parameters: ["*.weight"]}}\n'
    project.write(tables, named)
    assert project.build() == ALL
    assert (project.root / "out/net.tables.ptd").exists()
    project.write(tables, named + "constant_methods: {width: 8}\n")
    assert project.build() == KNOWN
    project.write(tables.replace("manual_seed(0)", "manual_seed(1)"), named)
    assert project.build() == ALL


def test_a_constant_method_compares_nothing(project: Project) -> None:
    project.write(manifest=MANIFEST + "constant_methods: {width: 8}\n")
    assert project.build() == KNOWN


def test_without_the_cache_all_are_compared(project: Project) -> None:
    project.write(manifest=MANIFEST + "constant_methods: {width: 8}\n")
    where = ["--no-cache", "-o", str(project.root / "out"), "--json"]
    project.capfd.readouterr()
    assert main.main(["build", str(project.root / "model.yaml"), *where]) == 0
    assert json.loads(project.capfd.readouterr().out)["comparisons"] == {}


def test_the_notes_of_a_known_method_are_those_of_its_comparison(project: Project) -> None:
    limited = MODEL.replace("self.first(x).relu()", "self.first(x).clamp(-1e9, 1e9)")
    project.write(limited)
    project.build()
    assert "note: `one` was compared with PyTorch in calls in which" in project.err
    before = (project.root / "out/net.report.json").read_bytes()
    project.write(limited.replace(".tanh()", ".sigmoid()"))
    assert project.build()["one"] == "model"
    assert "note: `one` was compared with PyTorch in calls in which" in project.err
    assert (project.root / "out/net.report.json").read_bytes() != before


def test_a_model_that_computes_something_else_is_found(project: Project) -> None:
    """The edit changes no exported method, so the model makes the calls that are known."""
    branch = "        if not torch.compiler.is_exporting():\n            return x\n        return (x + 2) * self.scale"
    project.write(MODEL.replace("        return (x + 2) * self.scale", branch))
    project.build(expect=1)
    assert "methods.three: the program and the exported method compute something else than the model" in project.err


def _output_of(method: str, file: PTEFile) -> Any:
    (plan,) = (plan for plan in file.program.execution_plan if plan.name == method)
    (delegate,) = plan.delegates
    return file.program.backend_delegate_data[delegate.processed.index]


def _in_delegate(file: PTEFile) -> None:
    one = _output_of("one", file)
    one.data = one.data[:-1] + bytes([one.data[-1] ^ 1])


def _in_named_data(file: PTEFile) -> None:
    output, named = _output_of("one", file).data, file.named_data
    assert named is not None
    key = next(key for key in named.pte_data if key.encode() in output)
    index = named.pte_data[key].buffer_index
    content = bytes(named.buffers[index])
    named.buffers[index] = bytes([content[0] ^ 1]) + content[1:]


def _in_instructions(file: PTEFile) -> None:
    (plan,) = (plan for plan in file.program.execution_plan if plan.name == "one")
    plan.chains[0].instructions.append(plan.chains[0].instructions[0])


def _in_constant(file: PTEFile, shape: Sequence[int] = ()) -> None:
    (plan,) = (plan for plan in file.program.execution_plan if plan.name == "three")
    constants = [each.val for each in plan.values if isinstance(each.val, Tensor) and each.val.data_buffer_idx]
    (tensor,) = (each for each in constants if each.sizes == [*shape])
    buffer = file.program.constant_buffer[tensor.data_buffer_idx]
    buffer.storage = bytes([buffer.storage[0] ^ 1]) + buffer.storage[1:]


def _in_constant_of_all(file: PTEFile) -> None:
    _in_constant(file, (4,))


def _behind_constants(file: PTEFile) -> None:
    for buffer in file.program.constant_buffer:
        buffer.storage += bytes(8)


def _in_memory(file: PTEFile) -> None:
    (plan,) = (plan for plan in file.program.execution_plan if plan.name == "one")
    plan.non_const_buffer_sizes[1] += 16


def _key_that_nobody_names(file: PTEFile) -> None:
    named = file.named_data
    assert named is not None
    first = next(iter(named.pte_data.values()))
    named.pte_data["other"] = replace(first)


CHANGES = [
    (_in_delegate, {"one"}),
    (_in_named_data, {"one"}),
    (_in_instructions, {"one"}),
    (_in_memory, {"one"}),
    (_in_constant, {"three"}),
    (_in_constant_of_all, {"one", "two", "three"}),
    (_behind_constants, set()),
    (_key_that_nobody_names, {"one", "two", "three"}),
]


def test_each_part_of_a_method_is_in_its_digest(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = project.root / "out/net.pte", program_file.read_program_file
    before = program_parts.method_digests(path)

    def changed(change: Callable[[PTEFile], None], path: Path) -> PTEFile:
        file = read(path)
        change(file)
        return file

    for change, methods in CHANGES:
        monkeypatch.setattr(program_file, "read_program_file", partial(changed, change))
        after = program_parts.method_digests(path)
        assert {name for name in before if before[name] != after[name]} == methods, change.__name__


def test_a_wrong_lowering_of_an_unchanged_method_is_found(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the method was made of is the same as before, and the program is not."""
    own = merging.merge

    def merge(*given: Any) -> Any:
        output = own(*given)
        (plan,) = (plan for plan in output.program.execution_plan if plan.name == "three")
        (add,) = (each for each in plan.operators if each.name == "aten::add")
        add.name = "aten::sub"
        return output

    monkeypatch.setattr(emit_program, "merge", merge)
    project.write(MODEL.replace(".tanh()", ".sigmoid()"))
    project.build(expect=1)
    assert "methods.three: the program computes something else than the exported method" in project.err
