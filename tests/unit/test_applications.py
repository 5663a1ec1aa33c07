"""Kinds of applications and what they can load; what inputs and outputs mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from etbuild.errors import CheckError
from etbuild.manifest import validate
from etbuild.plan.plan import Plan, from_manifest
from etbuild.report.parts import Reported
from etplugins.applications import interface, loading, tables

MANIFEST: dict[str, Any] = {
    "schema": "executorch-model/v1",
    "name": "net",
    "model": {"factory": "model:create"},
    "methods": {"forward": {"example_inputs": [{"shape": [1, 3, 8, 8]}]}},
}
IMAGE = {"dtype": "float32", "shape": [1, 3, 8, 8], "dynamic": False}
SCORES = {"dtype": "float32", "shape": [1, 2], "dynamic": False}


def plan_of(path: Path, **more: Any) -> Plan:
    """The plan of a manifest with more keys."""
    file = path / "net.yaml"
    file.write_text(yaml.safe_dump({**MANIFEST, **more}))
    return from_manifest(validate.load(file).data)


def reported(plan: Plan, artifacts: Any = (), **method: Any) -> Reported:
    """A program with one method."""
    facts = {"inputs": [IMAGE], "outputs": [SCORES], "delegates": {}, "operators": {}, "memory": [64], **method}
    program = {"methods": dict.fromkeys(plan.methods, facts)}
    lowering: Any = {"artifacts": [*artifacts], "program": program, "constant_methods": {}}
    inputs: Any = SimpleNamespace()
    return Reported(plan, inputs, {}, lowering, Path())


def message(plan: Plan, part: Any = loading, **program: Any) -> str:
    with pytest.raises(CheckError) as error:
        part.report(reported(plan, **program))
    return str(error.value)


@pytest.mark.parametrize("name", tables.names())
def test_each_kind_says_what_it_has_and_where_that_is_from(name: str) -> None:
    kind = tables.kind(name)
    assert kind.sources
    assert kind.backends
    assert kind.kernels.keys() <= tables.kernels().keys() - {"source"}
    assert kind.holder("aten::add.out")
    assert kind.holder("executorch_prim::et_view.default") == ""
    assert kind.holder("mylib::op.out") is None


def test_the_kernels_are_those_of_the_installed_package() -> None:
    executorch = pytest.importorskip("executorch")
    for listed in ("portable", "quantized"):
        file = "functions" if listed == "portable" else "quantized"
        entries = yaml.safe_load((Path(executorch.__path__[0]) / "kernels" / listed / f"{file}.yaml").read_text())
        names = {(entry.get("op") or entry["func"]).partition("(")[0] for entry in entries}
        assert sorted(name if "::" in name else f"aten::{name}" for name in names) == tables.kernels()[listed]


def test_one_kind_needs_no_list_and_the_order_counts_for_nothing(tmp_path: Path) -> None:
    assert plan_of(tmp_path, **{"for": "ios"}).to_json()["for"] == [{"kind": "ios"}]
    one, other = (plan_of(tmp_path, **{"for": kinds}) for kinds in (["ios", "android"], ["android", "ios"]))
    assert one == other
    assert "for" not in plan_of(tmp_path).to_json()


def test_a_program_that_fits_says_what_the_application_links(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **{"for": ["ios", "android"]})
    operators = {"aten::add.out": 1, "quantized_decomposed::add.out": 1, "executorch_prim::et_view.default": 1}
    added = loading.report(reported(plan, delegates={"XnnpackBackend": 1}, operators=operators))
    facts: Any = added.content["applications"]
    assert facts["ios"]["links"] == ["backend_xnnpack", "kernels_optimized", "kernels_quantized"]
    assert facts["android"]["links"] == ["org.pytorch:executorch-android"]
    assert list(facts) == ["android", "ios"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            {"operators": {"mylib::op.out": 1, "aten::add.out": 2}},
            [
                "methods.forward: `for: android`: ExecuTorch's AAR",
                "has no kernel for `mylib::op.out`, which",
                "`for: [{kind: android, kernels: [mylib::op.out]}]`",
            ],
        ),
        (
            {"delegates": {"CoreMLBackend": 1}},
            ["calls the backend CoreMLBackend", "it has NeuropilotBackend", "backends: [CoreMLBackend]}]`"],
        ),
        (
            {"inputs": [IMAGE, {"type": "null", "value": None}]},
            ["cannot pass input 1 of `forward`", "a value of type null, not one of bool, double, int, tensor"],
        ),
        (
            {"outputs": [{**SCORES, "dtype": "bool"}]},
            ["cannot take output 0 of `forward`", "a tensor of bool, not one of float16"],
        ),
        (
            {"artifacts": [{"file": "net.w.ptd", "kind": "named_data", "size": 1, "sha256": "0", "tag": "w"}]},
            ["cannot load the files of the program (`net.w.ptd`)", "takes no .ptd file"],
        ),
    ],
)
def test_what_an_application_cannot_load_is_an_error(
    program: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    said = message(plan_of(tmp_path, **{"for": ["android"]}), **program)
    for each in expected:
        assert each in said


def test_constant_methods_may_return_what_an_application_does_not_take(tmp_path: Path) -> None:
    """React Native reads `get_model_schema`, which is a text."""
    program = reported(plan_of(tmp_path, **{"for": ["react-native-executorch", "android"]}))
    text: Any = {"inputs": [], "outputs": [{"type": "string", "value": "{}"}], "delegates": {}, "operators": {}}
    methods: Any = program.lowering["program"]["methods"]
    without = loading.report(program)
    methods["get_model_schema"] = {**text, "memory": [0]}
    assert loading.report(program) == without


def test_an_application_may_have_more(tmp_path: Path) -> None:
    own = {"kind": "android", "kernels": ["mylib::op.out"], "backends": ["CoreMLBackend"]}
    plan = plan_of(tmp_path, **{"for": [own]})
    loading.report(reported(plan, delegates={"CoreMLBackend": 1}, operators={"mylib::op.out": 1}))


def test_methods_that_share_buffers(tmp_path: Path) -> None:
    methods = {name: {"example_inputs": [{"shape": [1]}]} for name in ("decode", "prefill")}
    plan = plan_of(tmp_path, methods=methods, share_mutable_buffers=True, **{"for": ["ios", "wheel"]})
    said = message(plan, memory=[64, 16])
    assert "share_mutable_buffers: `for: ios`: decode and prefill share buffers" in said
    assert "wheel" not in said
    loading.report(reported(plan, memory=[64]))


def described(tmp_path: Path, inputs: Any = None, outputs: Any = None) -> Plan:
    given = {"inputs": inputs, "outputs": outputs}
    return plan_of(tmp_path, metadata={key: value for key, value in given.items() if value is not None})


def test_what_the_manifest_says_stands_in_report_and_index(tmp_path: Path) -> None:
    plan = described(
        tmp_path,
        [{"name": "image", "layout": "nchw", "colors": "rgb", "mean": [0.5], "range": [-2, 2]}],
        {"forward": [{"name": "scores", "meaning": "How sure it is", "labels": ["cat", "dog"]}]},
    )
    added = interface.report(reported(plan))
    assert added.indexed == ("interface",)
    assert added.content["interface"] == {
        "forward": {
            "inputs": [
                {"name": "image", "layout": "nchw", "colors": "rgb", "mean": [0.5], "range": [-2, 2], **IMAGE},
            ],
            "outputs": [{"name": "scores", "meaning": "How sure it is", "labels": ["cat", "dog"], **SCORES}],
        }
    }


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([{"name": "a"}, {"name": "b"}], None, "metadata.inputs[1]: 2 inputs are described, and `forward` has 1"),
        ([{"name": "a", "layout": "nch"}], None, "`nch` has 3 letters, and the tensor has 4 dimensions"),
        ([{"name": "a", "layout": "nhwc", "colors": "rgb"}], None, "`rgb` has 3 channels, and the tensor has 8 at `c`"),
        ([{"name": "a", "layout": "nchw", "mean": [1, 2]}], None, "2 numbers for 3 channels"),
        (None, [{"name": "s", "labels": ["a", "b", "c"]}], "3 labels for 2 values: output 0 is float32[1, 2]"),
        (None, {"forward": [{"name": "s", "labels": ["a"]}]}, "metadata.outputs.forward[0].labels: 1 label for 2"),
    ],
)
def test_another_program_than_described_is_an_error(inputs: Any, outputs: Any, expected: str, tmp_path: Path) -> None:
    assert expected in message(described(tmp_path, inputs, outputs), interface)


def test_narrow_dtypes_and_other_values(tmp_path: Path) -> None:
    plan = described(tmp_path, [{"name": "a", "range": [0, 300], "mean": [1]}], [{"name": "n", "labels": ["a"]}])
    said = message(plan, interface, inputs=[{**IMAGE, "dtype": "uint8"}], outputs=[{"type": "int", "value": 3}])
    assert "uint8 holds 0 to 255, and the range is 0 to 300" in said
    assert "`mean` makes numbers with fractions" in said
    assert "`labels` is for tensors, and this is a value of type int" in said
    of_ids = described(tmp_path, None, [{"name": "class", "labels": ["a", "b", "c"]}])
    interface.report(reported(of_ids, outputs=[{"dtype": "int64", "shape": [1], "dynamic": False}]))


def test_pictures_are_described_as_their_samples_are_read(tmp_path: Path) -> None:
    samples = {"photos": {"files": "*.png", "image": {"size": [8, 8], "mean": [0.5], "deviation": [0.5]}}}
    methods = {"forward": {"example_inputs": [{"shape": [1, 3, 8, 8]}], "samples": "photos"}}
    plan = plan_of(
        tmp_path, samples=samples, methods=methods, metadata={"inputs": [{"name": "image", "range": [-1, 1]}]}
    )
    facts: Any = interface.report(reported(plan)).content["interface"]
    image = facts["forward"]["inputs"][0]
    assert (image["layout"], image["colors"], image["mean"], image["deviation"]) == ("nchw", "rgb", [0.5], [0.5])
